"""launch, exec, queue, logs, cancel, status and down, as a user and as a script sees them."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from skyserve_exec import errors
from tests.acceptance.sky_command import SKY, Sky, ended, sky_for
from tests.server_under_test import running_server
from tests.waiting import stays_so, wait_until


@pytest.fixture(scope="module")
def sky(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sky]:
    """Commands for one server of the whole module."""
    with running_server(tmp_path_factory.mktemp("jobs")) as server:
        sky = sky_for(server)
        yield sky
        sky.run("down", "-a")


@pytest.fixture(scope="module")
def dev(sky: Sky) -> str:
    """A cluster that is up."""
    sky.run("launch", "-c", "dev", "--", "true")
    return "dev"


def status_of(sky: Sky, cluster: str, job: int) -> str:
    jobs = sky.json("queue", cluster)
    return str(next(each["status"] for each in jobs if each["job_id"] == job))


# --- exit codes and bytes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("command", "code"), [("exit 0", 0), ("exit 1", 1), ("exit 3", 3), ("kill -9 $$", 137)])
def test_UX06_a_launch_ends_with_the_jobs_own_exit_code(sky: Sky, dev: str, command: str, code: int) -> None:
    sky.run("launch", "-c", dev, "--", command, code=code)
    sky.run("exec", dev, "--", command, code=code)
    sky.run("logs", dev, code=code)


def test_stdout_has_the_jobs_bytes_and_nothing_else(sky: Sky, dev: str) -> None:
    script = r"printf 'a\r10%%\r100%%\n\377\0\033[31mred\nevent: end\ndata: {}\n\nno newline'; echo on stderr >&2"
    process = sky.popen("exec", dev, "--", script)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0
    assert b"a\r10%\r100%\n\xff\0\x1b[31mred\nevent: end\ndata: {}\n\nno newline" in out
    assert b"on stderr\n" in out
    assert len(out) == len(b"a\r10%\r100%\n\xff\0\x1b[31mred\nevent: end\ndata: {}\n\nno newline" + b"on stderr\n")
    assert b"red" not in err


def test_LG05_output_comes_while_the_job_runs_also_without_a_newline(sky: Sky, dev: str) -> None:
    process = sky.popen("exec", dev, "--", "echo first; printf second; exec sleep 1000")
    assert process.stdout is not None
    assert process.stdout.readline() == b"first\n"
    assert process.stdout.read(6) == b"second"
    sky.run("cancel", dev, "-a")
    assert process.wait(30) == errors.EXIT_CANCELLED
    process.communicate()


def test_words_arrive_as_they_were_typed(sky: Sky, dev: str) -> None:
    done = sky.run("exec", dev, "--", "printf", "%s|", "a b", "$HOME", "--flag", "--", "'q'")
    assert done.out == "a b|$HOME|--flag|--|'q'|"
    assert sky.run("exec", dev, "--", "echo $((1 + 2)) | cat").out == "3\n"


def test_a_task_file_with_setup_workdir_and_variables(sky: Sky) -> None:
    (sky.home / "project").mkdir(exist_ok=True)
    (sky.home / "project/data.txt").write_text("from the workdir")
    (sky.home / "task.yaml").write_text(
        "name: full\nworkdir: project\nenvs: {A: 1, B: x}\nsecrets: {S: null}\n"
        'setup: echo setting up\nrun: |\n  cat data.txt; echo " $A $B $C $S"\n'
    )
    done = sky.run("launch", "-c", "full", "task.yaml", "--env", "B=y", "--env", "S=secret", "--env", "C", C="here")
    assert done.out == "from the workdir 1 y here secret\n"
    assert "setting up" in done.err
    assert sky.json("queue", "full")[0]["name"] == "full"
    sky.run("down", "full")


def test_setup_that_fails(sky: Sky) -> None:
    (sky.home / "bad.yaml").write_text("setup: echo before; exit 4\nrun: echo never\n")
    done = sky.run("launch", "-c", "bad", "bad.yaml", code=errors.EXIT_REQUEST_FAILED)
    assert done.out == ""
    assert "before" in done.err
    assert "Error: " in done.err
    sky.run("down", "bad")


# --- detached, asynchronous, listed ---------------------------------------------------------------------------------


def test_detached_jobs_are_followed_later(sky: Sky, dev: str) -> None:
    done = sky.run("exec", dev, "-d", "-n", "later", "--", "echo later; exit 5")
    job = done.out.split()[1]
    assert done.out == f"Job {job} is submitted to cluster dev.\n"
    assert f"sky logs dev {job}" in done.err
    assert sky.run("logs", dev, job, code=5).out == "later\n"
    assert sky.run("logs", dev, job, "--no-follow", code=5).out == "later\n"
    assert sky.run("logs", dev, job, "--status", code=errors.EXIT_REQUEST_FAILED).out == "FAILED\n"


def test_async_prints_the_request_id_only(sky: Sky, dev: str) -> None:
    done = sky.run("launch", "-c", dev, "--async", "--", "echo x")
    assert len(done.out) == 37
    assert done.err == ""
    sky.run("api", "logs", done.out.strip()[:8])


def test_a_job_that_runs_and_is_cancelled(sky: Sky, dev: str) -> None:
    job = sky.run("exec", dev, "-d", "--", "echo started; sleep 1000").out.split()[1]
    wait_until(lambda: sky.run("logs", dev, job, "--no-follow", code=108).out == "started\n", what="it has started")
    assert sky.run("logs", dev, job, "--status", code=errors.EXIT_JOB_NOT_FINISHED).out == "RUNNING\n"
    follower = sky.popen("logs", dev, job)
    assert follower.stdout is not None
    assert follower.stdout.readline() == b"started\n"
    assert sky.json("cancel", dev, job) == {"cluster": dev, "cancelled": [int(job)]}
    assert follower.wait(30) == errors.EXIT_CANCELLED
    follower.communicate()
    assert sky.run("logs", dev, job, "--status", code=errors.EXIT_CANCELLED).out == "CANCELLED\n"
    assert "had ended already" in sky.run("cancel", dev, job).out


def test_tail(sky: Sky, dev: str) -> None:
    job = sky.run("exec", dev, "-d", "--", "seq 1000").out.split()[1]
    sky.run("logs", dev, job)
    assert sky.run("logs", dev, job, "--tail", "2").out == "999\n1000\n"
    assert sky.run("logs", dev, job, "--tail", "2", "--no-follow").out == "999\n1000\n"


def test_jobs_queue_when_the_cluster_is_full_and_all_are_cancelled(sky: Sky) -> None:
    sky.run("launch", "-c", "small", "--cpus", "1", "--", "true")
    first = sky.run("exec", "small", "-d", "--cpus", "1", "--", "sleep 1000").out.split()[1]
    second = sky.run("exec", "small", "-d", "--cpus", "1", "--", "sleep 1000").out.split()[1]
    waiting = next(job for job in sky.json("queue", "small", "-s") if job["job_id"] == int(second))
    assert waiting["status"] == "PENDING"
    assert f"job {first}" in waiting["reason"]
    table = sky.run("queue", "small").out
    assert table.splitlines()[0].split()[:4] == ["CLUSTER", "JOB", "NAME", "STATUS"]
    assert waiting["reason"] in table
    assert sorted(sky.json("cancel", "small", "-a")["cancelled"]) == [int(first), int(second)]
    assert sky.json("queue", "small", "-s") == []
    sky.run("down", "small")


def test_UX03_lists_are_json_on_stdout_only(sky: Sky, dev: str) -> None:
    clusters = sky.json("status")
    assert {"name", "status", "infra", "resources", "created_at"} <= set(clusters[0])
    jobs = sky.json("queue", dev)
    assert {"cluster", "job_id", "status", "exit_code", "submitted_at"} <= set(jobs[0])
    empty = sky.json("queue", dev, "-s")
    assert isinstance(empty, list)
    done = sky.run("queue", "nosuch", "-o", "json", code=errors.EXIT_NOT_FOUND)
    assert done.json["error"]["type"] == "NotFound"
    assert done.err.startswith("Error: there is no cluster nosuch\n")
    assert "\x1b" not in done.out + done.err


def test_down_takes_several_and_tries_all(sky: Sky) -> None:
    sky.run("launch", "-c", "gone-1", "--", "true")
    sky.run("launch", "-c", "gone-2", "--", "true")
    outcome = sky.json("down", "gone-1", "nosuch", "gone-2", code=errors.EXIT_NOT_FOUND)
    assert [each["removed"] for each in outcome] == [True, False, True]
    assert outcome[1]["error"]["type"] == "NotFound"


# --- bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("launch",), 2, "one task file is needed"),
        (("launch", "nosuch.yaml"), 2, "nosuch.yaml: no such file"),
        (("launch", "--"), 2, "the command after -- is missing"),
        (("launch", "x.yaml", "--", "true"), 2, "either a task file or a command"),
        (("launch", "-c", "a/b", "--", "true"), 2, "cluster: 'a/b' cannot be a cluster's name"),
        (("launch", "-c", "a\x1b[2Jb", "--", "true"), 2, r"cluster: 'a\x1b[2Jb' cannot be"),
        (("launch", "--cpus", "many", "--", "true"), 2, "resources.cpus: 'many' is not a number"),
        (("launch", "--infra", "aws", "--", "true"), 2, "resources.infra: 'aws' is not supported"),
        (("launch", "--env", "=1", "--", "true"), 2, "--env =1: the name is missing"),
        (("exec", "nosuch", "--", "true"), 105, "there is no cluster nosuch"),
        (("exec", "a/b", "--", "true"), 2, "cluster: 'a/b' cannot be"),
        (("logs", "nosuch"), 105, "there is no cluster nosuch"),
        (("logs", "dev", "99999"), 105, "99999"),
        (("logs", "dev", "--status", "99999"), 105, "cluster dev has no job 99999"),
        (("logs", "dev", "x"), 2, "invalid value for 'JOB'"),
        (("logs", "dev", "--tail", "-1"), 2, "invalid value for '--tail'"),
        (("cancel", "dev"), 2, "JOBS or -a (--all) is needed, neither was given"),
        (("cancel", "dev", "1", "-a"), 2, "JOBS or -a (--all) is needed, not both"),
        (("cancel", "dev", "one"), 2, "JOBS: one is not a job's number"),
        (("cancel", "dev", "99999"), 105, "99999"),
        (("down",), 2, "CLUSTERS or -a (--all) is needed"),
        (("down", "nosuch"), 105, "there is no cluster nosuch"),
        (("status", "nosuch"), 105, "there is no cluster nosuch"),
        (("queue", "--frob"), 2, "no such option: --frob"),
        (("lunch",), 2, "no such command 'lunch'. Did you mean 'launch'?"),
    ],
)
def test_bad_input_is_one_clear_line(sky: Sky, dev: str, words: tuple[str, ...], code: int, message: str) -> None:
    done = sky.run(*words, code=code)
    assert done.out == ""
    lines = done.err.splitlines()
    assert lines[0].startswith("Error: ")
    assert message in lines[0]
    assert [line for line in lines[1:] if not line.startswith("Hint: ")] == []


# --- interrupted and cut --------------------------------------------------------------------------------------------


def test_UX01_ctrl_c_while_following_leaves_the_job_alone(sky: Sky, dev: str) -> None:
    terminal = sky.terminal("exec", dev, "--", "echo started; sleep 1000")
    terminal.expect("started")
    terminal.sendintr()
    code, rest = ended(terminal)
    assert code == errors.EXIT_INTERRUPTED
    job = int(rest.partition("job ")[2].split()[0])
    assert f"Stopped following; job {job} on cluster dev goes on." in rest
    assert f"sky logs dev {job}" in rest
    assert f"sky cancel dev {job}" in rest
    stays_so(lambda: status_of(sky, dev, job) == "RUNNING", seconds=2, what="the job goes on")
    sky.run("cancel", dev, str(job))


def test_UX01_two_quick_ctrl_c_say_it_once_and_without_a_traceback(sky: Sky, dev: str) -> None:
    terminal = sky.terminal("exec", dev, "--", "echo started; sleep 1000")
    terminal.expect("started")
    os.kill(terminal.pid, signal.SIGINT)
    os.kill(terminal.pid, signal.SIGINT)
    code, rest = ended(terminal)
    assert code == errors.EXIT_INTERRUPTED
    assert rest.count("KeyboardInterrupt") == 0
    sky.run("cancel", dev, "-a")


def test_UX01_ctrl_c_during_the_launch_names_the_request(sky: Sky) -> None:
    (sky.home / "slow.yaml").write_text("setup: echo setting up; sleep 1000\nrun: echo never\n")
    terminal = sky.terminal("launch", "-c", "slow", "slow.yaml")
    terminal.expect("setting up")
    terminal.sendintr()
    code, rest = ended(terminal)
    assert code == errors.EXIT_INTERRUPTED
    short = rest.partition("Request ")[2].split()[0]
    assert f"Request {short} (launch) goes on at the server." in rest
    assert f"sky api cancel {short}" in rest
    assert sky.json("api", "status", short)["requests"][0]["status"] == "RUNNING"
    sky.run("api", "cancel", short)
    sky.run("api", "logs", short, code=errors.EXIT_CANCELLED)
    sky.run("down", "slow")


def test_a_reader_that_goes_away_is_no_error(sky: Sky, dev: str) -> None:
    process = sky.popen("exec", dev, "--", "yes")
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() == b"y\n"
    process.stdout.close()
    assert process.wait(30) == 128 + signal.SIGPIPE
    assert b"rror" not in process.stderr.read()
    process.stderr.close()
    sky.run("cancel", dev, "-a")


def test_colours_are_for_terminals_that_want_them(sky: Sky, dev: str) -> None:
    terminal = sky.terminal("status")
    code, rest = ended(terminal)
    assert code == 0
    assert "NAME" in rest
    assert "\x1b[" in rest
    plain = sky.terminal("status", NO_COLOR="1")
    code, rest = ended(plain)
    assert "\x1b[3" not in rest


def test_closed_descriptors_are_no_faults(sky: Sky) -> None:
    for closed, code in (("<&-", 0), (">&-", 0), ("2>&-", 0), ("<&- >&- 2>&-", 0)):
        words = ["bash", "-c", f"{SKY} status {closed}; echo $? > code"]
        subprocess.run(words, cwd=sky.home, env=sky.env(), capture_output=True, check=False)
        assert int((sky.home / "code").read_text()) == code, closed


def test_dashes_before_the_command_are_not_a_command_to_run(sky: Sky) -> None:
    assert "one task file is needed" in sky.run("--", "launch", code=2).err


def test_other_encodings_do_not_break_json(sky: Sky, dev: str) -> None:
    sky.run("exec", dev, "-n", "näme €", "--", "true")
    assert sky.run("queue", dev, "-o", "json", PYTHONIOENCODING="latin-1").json[-1]["name"] == "näme €"
    assert "näme ?" in sky.run("queue", dev, PYTHONIOENCODING="ascii:replace").out.replace("n?me", "näme")


def test_bulk_actions_ask_on_a_terminal(sky: Sky) -> None:
    sky.run("launch", "-c", "asked", "--", "true")
    job = sky.run("exec", "asked", "-d", "--", "sleep 1000").out.split()[1]
    terminal = sky.terminal("cancel", "asked", "-a")
    terminal.expect(f"Cancel 1 job of cluster asked .{job}")
    terminal.sendline("n")
    code, _ = ended(terminal)
    assert code == errors.EXIT_USAGE
    assert status_of(sky, "asked", int(job)) == "RUNNING"
    terminal = sky.terminal("cancel", "asked", "-a")
    terminal.expect("Cancel 1 job")
    terminal.sendline("y")
    code, rest = ended(terminal)
    assert code == 0
    assert f"Job {job} of cluster asked is cancelled." in rest
    code, _ = ended(sky.terminal("down", "asked", "-y"))
    assert code == 0


def test_a_workdir_that_is_not_there_is_refused_before_anything_is_made(sky: Sky, tmp_path: Path) -> None:
    task = tmp_path / "task.yaml"
    task.write_text("run: pwd\nworkdir: missing\n")
    done = sky.run("launch", "-c", "never", str(task), code=2)
    assert f"{task} line 2: workdir: {sky.home / 'missing'} does not exist" in done.err
    assert sky.run("status", "never", code=105).out == ""
