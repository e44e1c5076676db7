"""The job queue of a cluster: order, resources, ends, cancels, and what survives the scheduler's death."""

from __future__ import annotations

import ast
import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.process.cluster_node import ClusterNode, cluster_node
from tests.processes import alive, kill_all, look, zombies
from tests.waiting import wait_until

NODE = Path(__file__).parent.parent.parent / "skyserve_exec" / "node"
OLD_PYTHONS = [path for name in ("python3.8", "python3.9", "python3.13") if (path := shutil.which(name))]
STUBBORN = "trap '' TERM; echo armed; while :; do sleep 0.1; done"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[ClusterNode]:
    with cluster_node(tmp_path / "box") as made:
        yield made


# --- ends -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "status", "code"),
    [("true", "SUCCEEDED", 0), ("exit 3", "FAILED", 3), ("kill -9 $$", "FAILED", 137), ("exit 137", "FAILED", 137)],
)
def test_UX06_a_job_keeps_its_own_exit_code(node: ClusterNode, script: str, status: str, code: int) -> None:
    job = node.wait_for(node.submit(script))
    assert (job["status"], job["exit_code"]) == (status, code)
    assert job["submitted_at"] <= job["started_at"] <= job["ended_at"]
    assert (job["reason"] is None) == (code == 0)


def test_environment_directory_and_log_of_a_job(tmp_path: Path) -> None:
    with cluster_node(tmp_path / "box", accelerators={"A100": 2}) as node:
        envs = {"GREETING": "grüß dich $HOME", "SKYPILOT_NODE_RANK": "7"}
        number = node.submit("env -0 > seen; pwd; printf 'no newline'", envs=envs, accelerators={"A100": 0.5})
        assert node.wait_for(number)["status"] == "SUCCEEDED"
        assert node.log(number) == f"{node.root}/workdir\nno newline".encode()
        seen = dict(line.split("=", 1) for line in (node.root / "workdir/seen").read_text().split("\0") if line)
    assert seen["GREETING"] == "grüß dich $HOME"
    assert seen["SKYPILOT_NODE_RANK"] == "0"
    assert seen["SKYPILOT_NODE_IPS"] == "127.0.0.1"
    assert seen["SKYPILOT_NUM_NODES"] == "1"
    assert seen["SKYPILOT_NUM_GPUS_PER_NODE"] == "1"
    assert seen["SKYPILOT_TASK_ID"].endswith(f"_box_{number}")
    assert json.loads(seen["SKYPILOT_CLUSTER_INFO"]) == {"cluster_name": "box", "cloud": "local"}
    assert seen["SKYSERVE_DETACHED"] == "1"
    assert "SKYSERVE_RUN_ID" not in seen


def test_a_job_has_default_signals_a_session_and_nothing_to_read(node: ClusterNode) -> None:
    number = node.submit("grep -E '^Sig(Blk|Ign)' /proc/self/status; ps -o sid= -p $$; cat; ls /proc/self/fd; umask")
    node.wait_for(number)
    words = node.log(number).decode().split()
    assert words[:4] == ["SigBlk:", "0" * 16, "SigIgn:", "0" * 16]
    assert words[4] != str(os.getsid(0))
    assert words[5:] == ["0", "1", "2", "3", "0022"]  # 3 is ls itself, reading the folder


def test_a_job_that_cannot_be_started_says_why(node: ClusterNode) -> None:
    number = node.submit("true", workdir=str(node.root / "nowhere"))
    job = node.wait_for(number)
    assert (job["status"], job["exit_code"]) == ("FAILED_SETUP", None)
    assert "nowhere" in job["reason"]
    job = node.wait_for(node.submit("true", envs={"HUGE": "x" * (1 << 20)}))
    assert job["status"] == "FAILED_SETUP"
    assert "too long" in job["reason"]


def test_what_a_script_leaves_running_ends_with_it(node: ClusterNode) -> None:
    number = node.submit("sleep 1000 & (setsid env -i sleep 1001 &) ; echo done")
    assert node.wait_for(number)["status"] == "SUCCEEDED"
    assert node.members() == []
    wait_until(lambda: node.scheduler() is None, what="the scheduler leaves when nothing is active")


def test_SE05_secrets_are_readable_by_nobody_else_and_gone_at_the_end(node: ClusterNode) -> None:
    number = node.submit("while [ ! -e go ]; do sleep 0.02; done", envs={"TOKEN": "canary-in-a-coal-mine"})
    node.wait_for(number, "RUNNING")
    folder = node.root / "jobs" / str(number)
    assert "canary" not in json.dumps(node.verb("queue"))
    modes = {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()}
    assert set(modes.values()) == {0o600}
    assert [node.root.joinpath(name).stat().st_mode & 0o777 for name in ("jobs", f"jobs/{number}")] == [0o700] * 2
    (node.root / "workdir/go").touch()
    node.wait_for(number)
    assert [path for path in node.root.rglob("*") if path.is_file() and b"canary" in path.read_bytes()] == []


# --- order and resources --------------------------------------------------------------------------------------------


def test_submits_at_the_same_time_get_numbers_without_gaps_and_run_in_order(node: ClusterNode) -> None:
    processes = [node.start("submit") for _ in range(32)]
    job = json.dumps({"run": 'echo "$SKYPILOT_JOB_ID" >> order', "cpus": 4}).encode()
    for process in processes:
        assert process.stdin
        process.stdin.write(job)
        process.stdin.close()
    answers = []
    for process in processes:
        assert process.stdout
        assert process.stderr
        answers.append(json.loads(process.stdout.read())["job_id"])
        assert process.stderr.read() == b""
        process.stdout.close()
        process.stderr.close()
        process.wait()
    assert sorted(answers) == list(range(1, 33))
    wait_until(lambda: node.verb("queue", "--active") == [], seconds=30, what="all jobs have ended")
    assert (node.root / "workdir/order").read_text().split() == [str(number) for number in range(1, 33)]


def test_jobs_wait_for_what_others_hold_and_none_overtakes(tmp_path: Path) -> None:
    wait = "while [ ! -e go ]; do sleep 0.02; done"
    with cluster_node(tmp_path / "box", cpus=2, accelerators={"A100": 1}) as node:
        first, half = node.submit(wait, cpus=1.5), node.submit(wait, accelerators={"A100": 0.5})
        node.wait_for(first, "RUNNING")
        node.wait_for(half, "RUNNING")
        large, small = node.submit("true", cpus=1), node.submit("true", cpus=0.1)
        jobs = {job["job_id"]: job for job in node.verb("queue", "--active")}
        assert {number: job["status"] for number, job in jobs.items()} == {
            first: "RUNNING",
            half: "RUNNING",
            large: "PENDING",
            small: "PENDING",
        }
        assert jobs[large]["reason"] == f"needs 1 cpus (0 free), running: job {first}, {half}"
        assert jobs[small]["reason"] == f"waits behind job {large}"
        assert node.verb("counts") == {str(node.root): {"running": 2, "pending": 2}}
        (node.root / "workdir/go").touch()
        assert [node.wait_for(number)["status"] for number in (large, small)] == ["SUCCEEDED"] * 2


def test_tenths_add_up_to_one(tmp_path: Path) -> None:
    with cluster_node(tmp_path / "box", cpus=1) as node:
        numbers = [node.submit("while [ ! -e go ]; do sleep 0.05; done", cpus=0.1) for _ in range(10)]
        wait_until(lambda: node.verb("counts")[str(node.root)]["running"] == 10, what="all ten run")
        (node.root / "workdir/go").touch()
        assert {node.wait_for(number)["status"] for number in numbers} == {"SUCCEEDED"}


@pytest.mark.parametrize(
    ("job", "message"),
    [
        ({"cpus": 5}, "the job needs 5 cpus; the cluster has 4"),
        ({"accelerators": {"H100": 1}}, "the job needs 1 H100; the cluster has 0"),
    ],
)
def test_a_job_that_never_fits_is_refused_and_leaves_nothing(node: ClusterNode, job: object, message: str) -> None:
    answer = node.verb("submit", given={"run": "true", **job})  # type: ignore[dict-item]
    assert answer == {"error": {"type": "BadInput", "message": message}}
    assert list((node.root / "jobs").iterdir()) == []


def test_a_small_cluster_runs_jobs_that_declare_nothing(tmp_path: Path) -> None:
    with cluster_node(tmp_path / "box", cpus=0.25) as node:
        assert node.wait_for(node.submit("true"))["status"] == "SUCCEEDED"


def test_what_a_cluster_has_is_declared_once(node: ClusterNode) -> None:
    assert node.verb("init", given={"name": "box", "cpus": 99})["has"]["cpus"] == 4


# --- cancel ---------------------------------------------------------------------------------------------------------


def test_cancel_ends_the_running_and_the_waiting(node: ClusterNode) -> None:
    running, waiting = node.submit("sleep 1000", cpus=4), node.submit("true")
    node.wait_for(running, "RUNNING")
    assert node.verb("cancel", str(waiting)) == {"cancelled": [waiting]}
    assert node.job(waiting)["started_at"] is None
    assert node.verb("cancel", "--all") == {"cancelled": [running]}
    job = node.job(running)
    assert (job["status"], job["exit_code"]) == ("CANCELLED", 143)
    assert node.log(running) == b""
    assert node.verb("cancel", str(running), str(waiting)) == {"cancelled": []}
    assert node.members() == []


def test_CX08_a_job_may_clean_up_in_its_grace(node: ClusterNode) -> None:
    number = node.submit("trap 'sleep 0.5; echo cleaned; exit 0' TERM; echo armed; sleep 1000 & wait")
    node.wait_for_log(number, b"armed")
    assert node.verb("cancel", str(number)) == {"cancelled": [number]}
    assert node.log(number) == b"armed\ncleaned\n"
    assert node.job(number)["status"] == "CANCELLED"


def test_CX10_what_ignores_the_request_is_killed_with_its_whole_tree(node: ClusterNode) -> None:
    number = node.submit("(trap '' TERM; setsid sleep 1000 & sleep 1001 &) ; " + STUBBORN)
    node.wait_for_log(number, b"armed")
    started = time.monotonic()
    assert node.verb("cancel", str(number), "--grace", "0.3") == {"cancelled": [number]}
    assert 0.3 <= time.monotonic() - started < 5
    assert node.members() == []


def test_a_second_cancel_may_shorten_the_grace_but_not_lengthen_it(node: ClusterNode) -> None:
    number = node.submit(STUBBORN)
    node.wait_for_log(number, b"armed")
    with node.start("cancel", str(number), "--grace", "60") as patient:
        wait_until(lambda: list((node.root / "cancel").iterdir()), what="the first cancel is asked")
        node.verb("cancel", str(number), "--grace", "0.1")
        patient.communicate(timeout=10)
    assert node.job(number)["status"] == "CANCELLED"


def test_a_cancel_in_the_first_moment_of_a_job_is_not_lost(node: ClusterNode) -> None:
    for _ in range(10):
        number = node.submit("sleep 100 & sleep 101")
        started = time.monotonic()
        assert node.verb("cancel", str(number)) == {"cancelled": [number]}
        assert time.monotonic() - started < 4  # below the grace: SIGTERM was enough


def test_unknown_jobs_are_named_and_nothing_is_cancelled(node: ClusterNode) -> None:
    number = node.submit("sleep 1000")
    answer = node.verb("cancel", str(number), "77")
    assert answer == {"error": {"type": "NotFound", "message": "no such job: 77"}}
    assert node.job(number)["status"] in {"PENDING", "RUNNING"}


# --- the scheduler dies ---------------------------------------------------------------------------------------------


def test_a_killed_scheduler_is_replaced_and_its_jobs_are_adopted(node: ClusterNode) -> None:
    number = node.submit("echo up; while [ ! -e go ]; do sleep 0.02; done; exit 5", cpus=4)
    waiting = node.submit("true")
    node.wait_for_log(number, b"up")
    node.kill_scheduler()
    assert {job["job_id"]: job["status"] for job in node.verb("queue")} == {number: "RUNNING", waiting: "PENDING"}
    assert node.scheduler() is not None
    (node.root / "workdir/go").touch()
    assert node.wait_for(number)["exit_code"] == 5
    assert node.wait_for(waiting)["status"] == "SUCCEEDED"


def test_a_job_that_ended_without_a_scheduler_keeps_its_exit_code(node: ClusterNode) -> None:
    number = node.submit("echo up; while [ ! -e go ]; do sleep 0.02; done; exit 6")
    node.wait_for_log(number, b"up")
    node.kill_scheduler()
    (node.root / "workdir/go").touch()
    wait_until(lambda: node.members() == [], what="the job is over")
    assert node.job(number)["exit_code"] == 6


def test_a_job_killed_without_a_scheduler_has_failed_with_the_reason(node: ClusterNode) -> None:
    number = node.submit("echo up; sleep 1000")
    node.wait_for_log(number, b"up")
    node.kill_scheduler()
    kill_all(node.members())
    job = node.job(number)
    assert (job["status"], job["exit_code"]) == ("FAILED", None)
    assert job["reason"] == "its processes are gone and left no exit code"


def test_adopted_jobs_are_cancelled_with_what_they_hid(node: ClusterNode) -> None:
    number = node.submit("(setsid sleep 1000 &) ; echo up; sleep 1001")
    node.wait_for_log(number, b"up")
    node.kill_scheduler()
    assert node.verb("cancel", str(number)) == {"cancelled": [number]}
    assert node.members() == []


def test_after_a_reboot_nothing_is_adopted_whatever_has_the_pid(node: ClusterNode) -> None:
    number = node.submit("echo up; sleep 1000")
    node.wait_for_log(number, b"up")
    node.kill_scheduler()
    survivors = node.members()
    state = node.root / "jobs" / str(number) / "state"
    # As if the state were from before a boot: another boot id, and a pid that somebody else has now.
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    state.write_text(state.read_text().replace(boot, "another-boot"))
    job = node.job(number)
    assert job["status"] == "FAILED"
    assert "restarted" in job["reason"]
    assert all(alive(seen.pid) for seen in survivors)
    kill_all(survivors)


def test_a_pid_that_is_somebody_elses_by_now_is_never_signalled(node: ClusterNode) -> None:
    number = node.submit("echo up; sleep 1000")
    node.wait_for_log(number, b"up")
    node.kill_scheduler()
    kill_all(node.members())
    state = node.root / "jobs" / str(number) / "state"
    lines = state.read_text().splitlines()
    row = next(index for index, line in enumerate(lines) if '"process"' in line)
    _pid, started, machine = lines[row].split('"')[3].split()
    lines[row] = f'"process": "{os.getpid()} {started} {machine}"'  # this test's own pid, started at another time
    state.write_text("\n".join(lines))
    assert node.verb("cancel", str(number)) == {"cancelled": []}
    assert node.job(number)["status"] == "FAILED"


def test_a_damaged_job_damages_no_other(node: ClusterNode) -> None:
    broken = node.submit("true")
    node.wait_for(broken)
    (node.root / "jobs" / str(broken) / "state").write_bytes(b"")
    assert node.wait_for(node.submit("true"))["status"] == "SUCCEEDED"
    assert node.job(broken)["status"] == "FAILED"
    assert "cannot be read" in node.job(broken)["reason"]


def test_one_scheduler_however_many_verbs_find_none(node: ClusterNode) -> None:
    number = node.submit("echo $SKYPILOT_JOB_ID; sleep 1000")
    for _ in range(3):
        node.wait_for_log(number, b"\n")
        node.kill_scheduler()
        processes = [node.start("queue") for _ in range(8)]
        for process in processes:
            with process:
                assert json.loads(process.communicate(b"", timeout=30)[0])[0]["status"] == "RUNNING"
        assert len(node.members()) == 3  # the wrapper, bash and sleep: nothing was started twice
    assert node.log(number) == b"1\n"


def test_the_scheduler_buries_the_dead(node: ClusterNode) -> None:
    number = node.submit("for i in 1 2 3 4 5; do (setsid sh -c 'sleep 0.1' &); done; sleep 1000")
    node.wait_for(number, "RUNNING")
    scheduler = wait_until(node.scheduler, what="a scheduler runs") or 0
    wait_until(lambda: len(node.members()) == 3, what="the orphans are over")
    wait_until(lambda: zombies(scheduler) == [], seconds=2, what="no zombie is left")
    seen = look(scheduler)
    assert seen is not None
    assert seen.is_detached


# --- shutdown -------------------------------------------------------------------------------------------------------


def test_shutdown_ends_everything_of_the_cluster_and_takes_no_more_jobs(node: ClusterNode) -> None:
    running = node.submit("echo up; sleep 1000")
    node.wait_for_log(running, b"up")
    assert node.verb("shutdown") == {"cancelled": [running]}
    assert node.members() == []
    assert node.scheduler() is None
    assert node.verb("submit", given={"run": "true"})["error"]["type"] == "Conflict"
    assert node.verb("shutdown") == {"cancelled": []}
    node.verb("init", given={"name": "box"})
    assert node.wait_for(node.submit("true"))["status"] == "SUCCEEDED"


# --- old Pythons ----------------------------------------------------------------------------------------------------


def test_the_node_speaks_python_3_8() -> None:
    for path in NODE.glob("*.py"):
        ast.parse(path.read_text(), feature_version=(3, 8))


@pytest.mark.parametrize("python", OLD_PYTHONS)
def test_other_pythons_run_and_cancel_jobs_too(tmp_path: Path, python: str) -> None:
    if os.system(f"{python} -c pass 2>/dev/null") != 0:
        pytest.skip(f"{python} does not start")
    with cluster_node(tmp_path / "box", python=python) as node:
        done, running = node.submit("exit 4"), node.submit("echo up; sleep 1000")
        assert node.wait_for(done)["exit_code"] == 4
        node.wait_for_log(running, b"up")
        node.kill_scheduler()
        follower = node.follow(running)
        assert node.verb("cancel", "--all") == {"cancelled": [running]}
        assert follower.communicate(timeout=10)[0] == b"up\n"
