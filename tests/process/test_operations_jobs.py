"""exec, queue, logs and cancel, each in a process of its own; the tail sessions are played by the tests."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.process.operation_driver import Place
from tests.waiting import wait_until

WAIT = "while [ ! -e go ]; do sleep 0.02; done"


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path / "state")
    yield made
    made.down_all()
    wait_until(lambda: made.members() == [], what="nothing of the clusters runs")


class Followed:
    """A logs request as serve runs it: the operation, its tail session, the operation again with its resume."""

    def __init__(self, place: Place, **payload: Any) -> None:
        self.place, self.payload = place, payload
        self.request = place.start("logs", payload=payload)
        self.end = self.request.end()
        self.tail: subprocess.Popen[bytes] | None = None

    @property
    def hand_off(self) -> dict[str, Any]:
        return dict(self.end["hand_off"])

    def start_tail(self) -> subprocess.Popen[bytes]:
        with self.request.log_path.open("ab") as log:
            self.tail = subprocess.Popen(self.hand_off["argv"], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        return self.tail

    def resume(self) -> dict[str, Any]:
        again = self.place.start(
            "logs", request_id=self.request.request_id, payload=self.payload, resume=self.hand_off["resume"]
        )
        self.end = again.end()
        return self.end

    def to_the_end(self) -> dict[str, Any]:
        while "hand_off" in self.end:
            assert self.start_tail().wait(timeout=30) == 0
            self.resume()
        return self.end

    def shown(self) -> bytes:
        return self.request.log_path.read_bytes()


def go(place: Place, cluster: str = "dev") -> None:
    (place.state.clusters / cluster / "workdir/go").touch()


# --- exec and queue -------------------------------------------------------------------------------------------------


def test_exec_copies_the_workdir_and_runs_without_the_setup(place: Place, tmp_path: Path) -> None:
    place.launch("dev", setup="echo once >> setups")
    source = tmp_path / "project"
    source.mkdir()
    (source / "data").write_text("new")
    task = {"workdir": str(source), "setup": "echo again >> setups", "run": "cat data setups"}
    assert place.call("exec", cluster="dev", task=task) == {"cluster": "dev", "job_id": 1}
    place.wait_for_job("dev", 1)
    assert (place.state.clusters / "dev/jobs/1/run.log").read_text() == "newonce\n"


def test_exec_refuses_what_cannot_work(place: Place) -> None:
    assert place.call("exec", cluster="dev", task={"run": "true"})["type"] == "NotFound"
    place.launch("dev")
    assert place.call("exec", cluster="dev", task={"run": None})["message"] == "run: the task has nothing to run"
    assert place.call("exec", cluster="dev", task={"run": "true", "workdir": "/no/where"})["type"] == "BadInput"
    assert place.call("queue", cluster="dev") == []


def test_queue_lists_one_cluster_or_all(place: Place) -> None:
    place.launch("one", name="mine", run="exit 3", secrets={"TOKEN": "canary"})
    place.launch("two", run="sleep 1000")
    place.wait_for_job("one", 1)
    place.wait_for_job("two", 1, "RUNNING")
    jobs = place.call("queue")
    assert [(job["cluster"], job["job_id"], job["name"], job["status"]) for job in jobs] == [
        ("one", 1, "mine", "FAILED"),
        ("two", 1, None, "RUNNING"),
    ]
    assert (jobs[0]["exit_code"], jobs[0]["reason"]) == (3, "exit code 3")
    assert "canary" not in str(jobs)
    assert [job["cluster"] for job in place.call("queue", skip_finished=True)] == ["two"]
    assert place.call("queue", cluster="one", skip_finished=True) == []
    assert place.call("queue", cluster="three")["type"] == "NotFound"


# --- cancel ---------------------------------------------------------------------------------------------------------


def test_cancel_says_which_jobs_it_cancelled(place: Place) -> None:
    place.launch("dev", resources={"cpus": 1.0}, run="true")
    place.wait_for_job("dev", 1)
    task = {"resources": {"cpus": 1.0}, "run": "sleep 1000"}
    numbers = [place.call("exec", cluster="dev", task=task)["job_id"] for _ in range(3)]
    assert place.call("cancel", cluster="dev", job_ids=[1, numbers[1]]) == [numbers[1]]
    assert place.call("cancel", cluster="dev", job_ids=[numbers[0], 99])["type"] == "NotFound"
    assert place.call("cancel", cluster="dev", all=True) == [numbers[0], numbers[2]]
    assert place.call("cancel", cluster="dev", all=True) == []
    assert place.call("cancel", cluster="nowhere", all=True)["type"] == "NotFound"


# --- logs -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("script", "code"), [("true", 0), ("exit 3", 3), ("kill -9 $$", 137)])
def test_UX06_following_ends_with_the_jobs_own_exit_code(place: Place, script: str, code: int) -> None:
    place.launch("dev", run=f"echo out; {script}")
    followed = Followed(place, cluster="dev")
    assert "hand_off" in followed.end
    end = followed.to_the_end()
    assert end["exit_code"] == code
    assert end["result"]["job_id"] == 1
    assert followed.shown() == b"out\n"


def test_printing_returns_at_once_with_what_there_is(place: Place) -> None:
    place.launch("dev", run=f"seq 5; printf 'no newline'; {WAIT}")
    log = place.state.clusters / "dev/jobs/1/run.log"
    wait_until(lambda: log.exists() and b"no newline" in log.read_bytes(), what="the job has printed")
    for tail, shown in ((0, "1\n2\n3\n4\n5\nno newline"), (2, "5\nno newline"), (100, "1\n2\n3\n4\n5\nno newline")):
        request = place.start("logs", payload={"cluster": "dev", "follow": False, "tail": tail})
        result = request.end()["result"]
        assert (result["status"], result["exit_code"]) == ("RUNNING", None)
        assert request.log() == shown


def test_following_the_last_lines(place: Place) -> None:
    place.launch("dev", run=f"seq 5; {WAIT}; echo end")
    log = place.state.clusters / "dev/jobs/1/run.log"
    wait_until(lambda: log.exists() and b"5\n" in log.read_bytes(), what="the job has printed")
    followed = Followed(place, cluster="dev", tail=2)
    go(place)
    followed.to_the_end()
    assert followed.shown() == b"4\n5\nend\n"


def test_LG15_a_tail_that_dies_is_resumed_at_the_exact_byte(place: Place) -> None:
    place.launch("dev", run="for i in $(seq 300); do echo line $i; sleep 0.01; done")
    followed = Followed(place, cluster="dev")
    for size in (200, 900, 2000):
        tail = followed.start_tail()
        wait_until(lambda size=size: len(followed.shown()) >= size, what="some output came")  # type: ignore[misc]
        tail.send_signal(signal.SIGKILL)
        tail.wait()
        assert "hand_off" in followed.resume()
    assert followed.to_the_end()["exit_code"] == 0
    assert followed.shown() == b"".join(b"line %d\n" % i for i in range(1, 301))


def test_after_a_server_restart_the_same_resume_goes_on_where_the_log_ends(place: Place) -> None:
    place.launch("dev", run=f"echo one; {WAIT}; echo two")
    followed = Followed(place, cluster="dev")
    first = followed.hand_off["resume"]
    tail = followed.start_tail()
    wait_until(lambda: followed.shown() == b"one\n", what="the output came")
    tail.send_signal(signal.SIGKILL)
    tail.wait()
    # The server died before it could ask again, twice: the row still holds the first resume.
    for _ in range(2):
        assert followed.resume()["hand_off"]["resume"]["offset"] == 4
        followed.end = {"hand_off": {"resume": first}}
    followed.resume()
    go(place)
    followed.to_the_end()
    assert followed.shown() == b"one\ntwo\n"


def test_the_end_of_a_tail_is_not_the_end_of_the_job(place: Place) -> None:
    place.launch("dev", run=f"echo one; {WAIT}; exit 4")
    followed = Followed(place, cluster="dev")
    tail = followed.start_tail()
    wait_until(lambda: followed.shown() == b"one\n", what="the output came")
    tail.send_signal(signal.SIGKILL)
    tail.wait()
    go(place)
    place.wait_for_job("dev", 1)
    assert followed.resume()["exit_code"] == 4


def test_output_that_came_after_the_tail_died_is_still_fetched(place: Place) -> None:
    place.launch("dev", run=f"echo one; {WAIT}; echo two; exit 4")
    followed = Followed(place, cluster="dev")
    go(place)
    place.wait_for_job("dev", 1)
    assert "hand_off" in followed.resume()  # the job is over, but its output is not here yet
    assert followed.to_the_end()["exit_code"] == 4
    assert followed.shown() == b"one\ntwo\n"


def test_a_log_that_cannot_be_followed_ends_the_request(place: Place) -> None:
    place.launch("dev", run="echo one; sleep 1000")
    followed = Followed(place, cluster="dev")
    ends = 0
    while "hand_off" in followed.end:
        followed.resume()  # its tail ended at once and brought nothing
        ends += 1
        assert ends < 20
    assert followed.end["error"]["type"] == "StreamIncomplete"


def test_a_waiting_job_says_what_it_waits_for(place: Place) -> None:
    place.launch("dev", resources={"cpus": 1.0}, run=WAIT)
    place.wait_for_job("dev", 1, "RUNNING")
    place.call("exec", cluster="dev", task={"resources": {"cpus": 1.0}, "run": "echo ran"})
    followed = Followed(place, cluster="dev", job_id=2)
    assert followed.hand_off["reason"] == "job 2 needs 1 cpus (0 free), running: job 1"
    assert Followed(place, cluster="dev", job_id=1).hand_off["reason"] == "following job 1"
    go(place)
    assert followed.to_the_end()["exit_code"] == 0
    assert followed.shown() == b"ran\n"


def test_a_cancelled_job_says_so(place: Place) -> None:
    place.launch("dev", run="printf up; sleep 1000")
    followed = Followed(place, cluster="dev")
    tail = followed.start_tail()
    wait_until(lambda: followed.shown() == b"up", what="the output came")
    assert place.call("cancel", cluster="dev", job_ids=[1]) == [1]
    tail.wait(timeout=10)
    end = followed.resume()
    assert (end["exit_code"], end["result"]["status"]) == (101, "CANCELLED")
    assert followed.shown() == b"up\nJob 1 was cancelled.\n"


def test_a_job_that_could_not_start_says_why(place: Place) -> None:
    place.launch("dev", run="true", envs={"HUGE": "x" * (1 << 20)})
    followed = Followed(place, cluster="dev")
    assert followed.to_the_end()["exit_code"] == 100
    assert b"Job 1 has FAILED_SETUP: cannot be started" in followed.shown()


def test_a_cluster_that_goes_down_ends_the_following(place: Place) -> None:
    place.launch("dev", run="echo up; sleep 1000")
    followed = Followed(place, cluster="dev")
    tail = followed.start_tail()
    wait_until(lambda: followed.shown() == b"up\n", what="the output came")
    place.call("down", cluster="dev")
    assert tail.wait(timeout=10) == 0
    place.launch("dev", run="echo another one")
    assert followed.resume()["error"]["message"] == "cluster dev was taken down while job 1 was followed"
    place.call("down", cluster="dev")
    assert followed.end["error"]["type"] == "NotFound"


def test_unknown_jobs_and_clusters(place: Place) -> None:
    assert place.call("logs", cluster="dev")["type"] == "NotFound"
    place.launch("dev")
    assert place.call("logs", cluster="dev")["message"] == "cluster dev has no jobs yet"
    assert place.call("logs", cluster="dev", job_id=7)["message"] == "cluster dev: no such job: 7"


def test_jobs_outlive_the_process_that_submitted_them(place: Place) -> None:
    script = "mkfifo gate; echo up; read line < gate; exit 5"
    request = place.start("launch", payload={"cluster": "dev", "task": {"run": script}})
    request.end()
    log = place.state.clusters / "dev/jobs/1/run.log"
    wait_until(lambda: log.read_text() == "up\n", what="the job runs")
    members = place.members()
    assert len(members) == 3  # the scheduler, the wrapper, the script
    for seen in members:
        assert "SKYSERVE_DETACHED=1" in seen.environment
        assert os.getsid(seen.pid) != request.process.pid
    (place.state.clusters / "dev/workdir/gate").write_text("go\n")
    assert place.wait_for_job("dev", 1)["exit_code"] == 5
