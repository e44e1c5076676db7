"""launch, status and down, each in a process of its own."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.process.operation_driver import Place
from tests.waiting import wait_until


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path / "state")
    yield made
    made.down_all()
    wait_until(lambda: made.members() == [], what="nothing of the clusters runs")


# --- launch ---------------------------------------------------------------------------------------------------------


def test_a_launch_makes_sets_up_and_runs(place: Place, tmp_path: Path) -> None:
    source = tmp_path / "project"
    source.mkdir()
    (source / "data").write_text("from the workdir\n")
    task = {
        "name": "train",
        "workdir": str(source),
        "setup": "echo setting up; cat data > seen; echo $WHO",
        "run": "cat seen; echo $WHO $TOKEN; pwd",
        "envs": {"WHO": "me"},
        "secrets": {"TOKEN": "canary"},
    }
    request = place.start("launch", payload={"cluster": "dev", "task": task})
    result = request.end()["result"]
    assert (result["cluster"], result["job_id"], result["created"]) == ("dev", 1, True)
    assert request.log().splitlines() == [
        "Cluster dev: creating on local",
        f"Workdir: copying {source}",
        "Workdir: 1 files (17 B) copied",
        "Cluster dev: up",
        "Setup: running",
        "setting up",
        "me",
        "Setup: done",
        "Job 1: submitted to cluster dev",
    ]
    assert place.wait_for_job("dev", 1)["status"] == "SUCCEEDED"
    directory = place.state.clusters / "dev"
    assert (directory / "jobs/1/run.log").read_text() == f"from the workdir\nme canary\n{directory}/workdir\n"


def test_a_second_launch_reuses_the_cluster(place: Place) -> None:
    assert place.launch("dev", run="echo 1 > kept")["job_id"] == 1
    place.wait_for_job("dev", 1)
    request = place.start("launch", payload={"cluster": "dev", "task": {"run": "cat kept"}})
    result = request.end()["result"]
    assert (result["job_id"], result["created"]) == (2, False)
    assert request.log().startswith("Cluster dev: reused\n")
    assert place.wait_for_job("dev", 2)["exit_code"] == 0


def test_a_launch_without_a_run_only_makes_the_cluster(place: Place) -> None:
    assert place.launch("dev")["job_id"] is None
    assert place.call("queue", cluster="dev") == []


def test_a_failing_setup_fails_the_request_and_leaves_the_cluster_usable(place: Place) -> None:
    request = place.start("launch", payload={"cluster": "dev", "task": {"setup": "echo half; exit 9", "run": "true"}})
    error = request.end()["error"]
    assert error["type"] == "SetupFailed"
    assert "exit code 9" in error["message"]
    assert "half\n" in request.log()
    assert place.call("status")[0]["status"] == "UP"
    assert place.call("exec", cluster="dev", task={"run": "true"}) == {"cluster": "dev", "job_id": 1}


@pytest.mark.parametrize("workdir", ["/no/such/folder", "/etc/passwd"])
def test_a_workdir_that_is_not_there_leaves_nothing(place: Place, workdir: str) -> None:
    error = place.launch("dev", workdir=workdir, run="true")
    assert error["type"] == "BadInput"
    assert workdir in error["message"]
    assert place.call("status") == []
    assert list(place.state.clusters.iterdir()) == []


def test_a_copy_that_fails_takes_the_new_cluster_back(place: Place, tmp_path: Path) -> None:
    source = tmp_path / "project"
    (source / "folder").mkdir(parents=True)
    place.launch("other")
    conflict = place.state.clusters / "other/workdir/folder"
    # A file of a job where the source has a folder is replaced; a folder with files where it has a file is not.
    conflict.mkdir()
    (conflict / "result").touch()
    shutil.rmtree(source / "folder")
    (source / "folder").touch()
    assert place.launch("other", workdir=str(source), run="true")["type"] == "Conflict"
    assert place.call("status")[0]["status"] == "UP"
    inside = place.launch("dev", workdir=str(place.state.clusters), run="true")
    assert inside["type"] == "BadInput"
    assert [cluster["name"] for cluster in place.call("status")] == ["other"]
    assert not (place.state.clusters / "dev").exists()


def test_resources_are_declared_by_the_first_launch(place: Place) -> None:
    asked: dict[str, Any] = {"infra": "local", "cpus": 2.0, "memory": None, "accelerators": {"A100": 1.0}}
    resources = place.launch("dev", resources=asked, run="echo $SKYPILOT_NUM_GPUS_PER_NODE")["resources"]
    assert (resources["cpus"], resources["accelerators"]) == (2, {"A100": 1})
    assert resources["memory"] > 0
    assert place.call("status")[0]["resources"] == resources
    assert place.wait_for_job("dev", 1)["resources"] == {"cpus": 2, "memory": 0, "A100": 1}
    for larger, message in (
        ({"cpus": 4.0}, "resources.cpus: the task asks for 4 CPUs, but cluster dev was launched with 2"),
        ({"accelerators": {"H100": 1.0}}, "resources.H100: the task asks for 1 H100, but cluster dev"),
    ):
        for error in (
            place.launch("dev", resources=larger, run="true"),
            place.call("exec", cluster="dev", task={"resources": larger, "run": "true"}),
        ):
            assert error["type"] == "Conflict"
            assert error["message"].startswith(message)
    assert len(place.call("queue", cluster="dev")) == 1


def test_a_new_cluster_has_the_cpus_that_this_process_may_use(place: Place) -> None:
    assert 0 < place.launch("dev")["resources"]["cpus"] <= len(os.sched_getaffinity(0))


@pytest.mark.parametrize("name", ["..", ".", "a/b", "/tmp", ".hidden", ""])
def test_a_name_that_leads_elsewhere_is_refused(place: Place, name: str) -> None:
    assert place.launch(name, run="true")["type"] == "BadInput"
    assert place.call("status") == []


def test_a_cancel_in_the_setup_ends_it_and_leaves_the_cluster(place: Place) -> None:
    setup = "trap 'echo cleaned; exit' TERM; echo armed; (setsid sleep 1000 &); sleep 1001 & wait"
    request = place.start("launch", payload={"cluster": "dev", "task": {"setup": setup, "run": "true"}})
    request.wait_for_log("armed")
    assert request.cancel() == {"interrupted": "RequestCancelled"}
    assert "cleaned\n" in request.log()
    assert "Cluster dev: stays up without this setup; remove it with: sky down dev" in request.log()
    assert [seen.title for seen in place.members() if "sleep" in seen.title] == []
    assert place.call("queue", cluster="dev") == []


def test_a_cancel_in_the_copy_takes_the_new_cluster_back(place: Place, tmp_path: Path) -> None:
    source = tmp_path / "project"
    source.mkdir()
    for number in range(3000):
        (source / str(number)).write_bytes(b"x" * 5000)
    request = place.start("launch", payload={"cluster": "dev", "task": {"workdir": str(source), "run": "true"}})
    workdir = place.state.clusters / "dev/workdir"
    wait_until(lambda: workdir.exists() and any(workdir.iterdir()), what="the copy has begun")
    assert request.cancel() == {"interrupted": "RequestCancelled"}
    assert request.log().endswith("Cluster dev: not made; nothing of it is left\n")
    assert place.call("status") == []
    assert list(place.state.clusters.iterdir()) == []


def test_a_launch_that_was_killed_is_made_whole_by_the_next(place: Place, tmp_path: Path) -> None:
    source = tmp_path / "project"
    source.mkdir()
    for number in range(3000):
        (source / str(number)).write_bytes(b"x" * 5000)
    payload = {"cluster": "dev", "task": {"workdir": str(source), "run": "ls | wc -l"}}
    request = place.start("launch", payload=payload)
    workdir = place.state.clusters / "dev/workdir"
    wait_until(lambda: workdir.exists() and any(workdir.iterdir()), what="the copy has begun")
    request.process.send_signal(signal.SIGKILL)
    request.process.wait()
    assert place.call("status")[0]["status"] == "INIT"
    assert place.call("exec", cluster="dev", task={"run": "true"})["type"] == "Conflict"
    assert place.start("launch", payload=payload).end()["result"]["job_id"] == 1
    place.wait_for_job("dev", 1)
    assert (place.state.clusters / "dev/jobs/1/run.log").read_text().strip() == "3000"


def test_a_cancel_at_any_moment_leaves_a_job_or_none_but_never_half_a_cluster(place: Place) -> None:
    for step in range(10):
        request = place.start("launch", payload={"cluster": f"c{step}", "task": {"run": "sleep 1000"}})
        end = request.cancel(after=0.03 * step)
        clusters = {cluster["name"]: cluster for cluster in place.call("status")}
        if "result" in end:
            assert clusters[f"c{step}"]["status"] == "UP"
        elif f"c{step}" in clusters:
            assert clusters[f"c{step}"]["status"] == "UP"
            jobs = place.call("queue", cluster=f"c{step}")
            assert {job["status"] for job in jobs} <= {"CANCELLED", "RUNNING", "PENDING"}
        else:
            assert not (place.state.clusters / f"c{step}").exists()


# --- status ---------------------------------------------------------------------------------------------------------


def test_status_lists_clusters_with_their_jobs(place: Place) -> None:
    assert place.call("status") == []
    place.launch("one", name="train", resources={"cpus": 1.0}, run="sleep 1000")
    place.wait_for_job("one", 1, "RUNNING")
    place.call("exec", cluster="one", task={"resources": {"cpus": 1.0}, "run": "sleep 1000\nmore"})
    place.launch("two")
    first, second = place.call("status")
    assert (first["name"], first["infra"], first["status"], first["user"]) == ("one", "local", "UP", "tester")
    assert first["jobs"] == {"running": 1, "pending": 1}
    assert (first["last_task"], second["last_task"]) == ("sleep 1000", None)
    assert second["jobs"] == {"running": 0, "pending": 0}
    assert first["created_at"] <= second["created_at"]
    assert [cluster["name"] for cluster in place.call("status", clusters=["two"])] == ["two"]
    error = place.call("status", clusters=["two", "three", "four"])
    assert (error["type"], error["message"]) == ("NotFound", "there is no cluster four, three")


# --- down -----------------------------------------------------------------------------------------------------------


def test_down_ends_everything_and_removes_only_its_own(place: Place, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("kept")
    place.launch("dev", run=f"ln -s {precious} link; (setsid sleep 1000 &) ; echo up; sleep 1001")
    place.launch("other", run="true")
    log = place.state.clusters / "dev/jobs/1/run.log"
    wait_until(lambda: log.exists() and log.read_text() == "up\n", what="the job runs")
    assert place.call("down", cluster="dev") == {"cluster": "dev", "cancelled": [1]}
    assert (precious / "file").read_text() == "kept"
    assert [path.name for path in place.state.clusters.iterdir()] == ["other"]
    assert [cluster["name"] for cluster in place.call("status")] == ["other"]
    assert [seen.title for seen in place.members() if "sleep" in seen.title] == []
    assert place.call("down", cluster="dev")["type"] == "NotFound"
    # A second attempt of the same request: the first died between its work and its report.
    end = place.start("down", payload={"cluster": "dev"}, attempt=2).end()
    assert end["result"] == {"cluster": "dev", "cancelled": []}


def test_down_of_a_damaged_cluster_works(place: Place) -> None:
    place.launch("gone")
    shutil.rmtree(place.state.clusters / "gone")
    place.launch("broken", run="echo up; sleep 1000")
    log = place.state.clusters / "broken/jobs/1/run.log"
    wait_until(lambda: log.read_text() == "up\n", what="the job runs")
    shutil.rmtree(place.state.clusters / "broken/agent")
    (place.state.clusters / "broken/cluster.json").unlink()
    assert [cluster["jobs"] for cluster in place.call("status")] == [None, None]
    assert place.call("down", cluster="gone")["cancelled"] == []
    assert place.call("down", cluster="broken")["cancelled"] == [1]
    assert list(place.state.clusters.iterdir()) == []


def test_a_cluster_directory_that_is_a_link_is_not_followed(place: Place, tmp_path: Path) -> None:
    place.launch("dev")
    shutil.rmtree(place.state.clusters / "dev")
    precious = tmp_path / "precious"
    (precious / "sub").mkdir(parents=True)
    (place.state.clusters / "dev").symlink_to(precious)
    place.call("down", cluster="dev")
    assert (precious / "sub").is_dir()
    assert list(place.state.clusters.iterdir()) == []
