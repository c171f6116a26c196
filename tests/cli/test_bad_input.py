"""What people give by mistake: one clear answer each, and nothing half done."""

from __future__ import annotations

import json
import random
import socket
import sqlite3
import sys
from pathlib import Path

import pytest

from ecs_gpu_recovery.jobfile import LARGEST_FILE
from ecs_gpu_recovery.jobkeys import KEYS
from ecs_gpu_recovery.local.schema import SCHEMA_VERSION
from tests.cli.conftest import Command, Result
from tests.embedded.helpers import LiveController

SLEEP = (sys.executable, "-c", "import time; time.sleep(3600)")
pytestmark = pytest.mark.usefixtures("free_nodes")


def submit_file(here: Command, tmp_path: Path, text: str | bytes, name: str = "job.toml") -> Result:
    path = tmp_path / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return here("submit", "-f", path)


@pytest.mark.usefixtures("unchanged")
class TestJobFiles:
    def test_all_wrong_types_are_told_at_once(self, here: Command, tmp_path: Path) -> None:
        told = submit_file(
            here,
            tmp_path,
            'name = 5\ncommand = "python train.py"\nnodes = "node-1"\nport = "80"\nmax_retries = true\n'
            "memory_mib = 1.5\ncheck = 1\ngpus_per_node = [1]\nworkdir = 2026-11-15\n[env]\nA = 1\n",
        )
        told.refused(
            "the job was not submitted:",
            "name: must be text, not a whole number",
            "command: must be a list, not text",
            "nodes: must be a list, not text",
            "port: must be a whole number, not text",
            "max_retries: must be a whole number, not true or false",
            "memory_mib: must be a whole number, not a number",
            "check: must be text, not a whole number",
            "gpus_per_node: must be a whole number, not a list",
            "workdir: must be text",
            "env.A: names are letters, digits and '_'; values are strings",
        )
        assert "what shall run" not in told.err, "a wrong command is there, only wrong"
        assert "name the nodes" not in told.err

    def test_what_was_piped_in_is_called_standard_input(self, here: Command) -> None:
        here("submit", "-f", "-", stdin="{").refused("standard input is not valid JSON")

    def test_unknown_keys_are_named_with_what_was_meant(self, here: Command, tmp_path: Path) -> None:
        told = submit_file(here, tmp_path, 'any_node = 2\nscrpt = "x"\ncommand = ["true"]\nany_nodes = 1\n')
        told.refused(
            "any_node: unknown key; did you mean any_nodes?", "scrpt: unknown key; did you mean script?"
        )
        assert told.err.count(", ".join(KEYS)) == 1

    @pytest.mark.parametrize(
        ("line", "words"),
        [
            ("any_nodes = 0", "any_nodes: must be from 1 to 4096, not 0"),
            ("any_nodes = -1", "any_nodes: must be from 1 to 4096, not -1"),
            ("nodes = []", "name the nodes, or say with any_nodes (--any)"),
            ('nodes = ["node-1", "node-1"]', "a node is named twice"),
            ('nodes = ["node-1", ""]', "named twice, or not at all"),
            ("nodes = [1, 2]", "nodes: every entry must be text"),
            ('nodes = ["node-1"]\nany_nodes = 1', "one of the two"),
            ("any_nodes = 1\nport = 80", "port: must be from 1024 to 65535, not 80"),
            ("any_nodes = 1\nport = 99999999999999999999999999", "port: must be from 1024 to 65535"),
            ("any_nodes = 1\nmax_retries = -1", "max_retries: must be from 0 to 100"),
            ('any_nodes = 1\nname = "a b"', "name: use 1 to 63 ASCII letters"),
            ('any_nodes = 1\nid = "../../x"', "id: use 1 to 63 ASCII letters"),
            ('any_nodes = 1\ncheck = "deep"', "check: use one of quick, 1, 2, 3, 4, none"),
            ('any_nodes = 1\nworkdir = "/not/there"', "workdir: /not/there is not a folder"),
            ('any_nodes = 1\nargs = ["x"]', "args: they belong to `script`"),
            ('any_nodes = 1\nscript = "x.py"', "give a command or a script, not both"),
            ('any_nodes = 1\nname = "a\\u0000b"', "name: must be plain text"),
            ('any_nodes = 1\n[env]\nMASTER_PORT = "1"', "use the key port"),
            ('any_nodes = 1\n[env]\nCHECKPOINT_DIR = "/x"', "use the key checkpoint_dir"),
            ('any_nodes = 1\n[env]\n"A=B" = "1"', "env.A=B: names are letters"),
            ('any_nodes = 1\n[env]\nA = "\\u0000"', "env.A: must be plain text"),
        ],
    )
    def test_a_value_that_cannot_be_is_refused(
        self, here: Command, tmp_path: Path, line: str, words: str
    ) -> None:
        submit_file(here, tmp_path, f'command = ["true"]\n{line}\n').refused(words)

    @pytest.mark.parametrize(
        ("line", "words"),
        [
            ('script = "/not/there.py"', "script: /not/there.py does not exist"),
            ('script = "/tmp"', "script: /tmp does not exist"),
            ('command = ["no-such-program-here"]', "no program 'no-such-program-here' in your PATH"),
            ('command = ["./run.sh"]', "./run.sh does not exist or cannot be executed"),
            ('command = ["/dev/null"]', "/dev/null does not exist or cannot be executed"),
            ("command = []", "what shall run? Give a command or a script"),
            ('task_definition = "train:3"', "what shall run? Give a command or a script"),
        ],
    )
    def test_a_program_that_cannot_run_is_refused(
        self, here: Command, tmp_path: Path, line: str, words: str
    ) -> None:
        submit_file(here, tmp_path, f"any_nodes = 1\n{line}\n").refused(words)

    @pytest.mark.parametrize("name", ["job.toml", "job.json"])
    @pytest.mark.parametrize(
        "content",
        [
            random.Random(5).randbytes(5000),
            b"\xff\xfe\x00\x00",
            b"{",
            b"[" * 100_000,
            b"x = " + b"[" * 100_000,
            b"{" * 3 + b'"a":' * 50_000,
            b"null",
            b"[1, 2]",
            b"\x00" * 100,
        ],
    )
    def test_what_is_no_job_file_is_refused(
        self, here: Command, tmp_path: Path, name: str, content: bytes
    ) -> None:
        submit_file(here, tmp_path, content, name).refused(str(tmp_path / name))

    def test_an_empty_file_asks_for_everything(self, here: Command, tmp_path: Path) -> None:
        submit_file(here, tmp_path, "").refused(
            "what shall run?", "name the nodes", "gpu-recovery submit --help"
        )

    def test_a_huge_file_is_not_read_to_its_end(self, here: Command, tmp_path: Path) -> None:
        path = tmp_path / "job.toml"
        with open(path, "wb") as file:
            file.truncate(LARGEST_FILE * 5000)
        here("submit", "-f", path).refused("larger than 1 MiB: that is no job file")
        here("submit", "-f", "/dev/zero").refused("larger than 1 MiB")

    def test_a_file_that_cannot_be_read_is_refused(self, here: Command, tmp_path: Path) -> None:
        here("submit", "-f", tmp_path / "nothing.toml").refused("nothing.toml does not exist")
        here("submit", "-f", tmp_path).refused("cannot be read: Is a directory")


@pytest.mark.usefixtures("unchanged")
class TestSubmissions:
    def test_unknown_nodes_are_all_named(self, here: Command) -> None:
        told = here("submit", "--nodes", "node-1,nowhere,node-9", "--", "true")
        told.refused("nowhere: no such node", "node-9: no such node", "See: gpu-recovery nodes")
        assert "node-1:" not in told.err

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            (("--any", 4), "wants 4 free nodes, and there are 3"),
            (("--any", 0), "any_nodes: must be from 1 to 4096, not 0"),
            ((), "name the nodes, or say with any_nodes"),
            (("--any", 1, "--nodes", "node-1"), "one of the two"),
            (("--nodes", "node-1", "--gpus", 3), "node-1: has 2 GPUs, the job wants 3 of each node"),
            (("--any", 1, "--gpus", 3), "1 free nodes with 3 GPUs each, and there are 0"),
            (("--any", 1, "--max-retries", -2), "max_retries: must be from 0 to 100, not -2"),
        ],
    )
    def test_what_cannot_be_had_is_refused(
        self, here: Command, options: tuple[object, ...], words: str
    ) -> None:
        here("submit", *options, "--", "true").refused(words)

    def test_a_checkpoint_folder_that_cannot_be(self, here: Command, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        for path in (tmp_path / "file", tmp_path / "file" / "below"):
            told = here("submit", "--any", 1, "--checkpoint-dir", path, "--", "true")
            told.refused(f"the checkpoint folder {path} cannot be made")

    def test_a_port_that_another_program_uses(self, here: Command) -> None:
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            other.listen(1)
            port = other.getsockname()[1]
            told = here("submit", "--any", 1, "--port", port, "--", "true")
        told.refused(f"port {port} is in use by another program", "Leave the port out to get a free one")


def test_the_port_of_another_job_is_taken_even_before_it_listens(here: Command, live: LiveController) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        port = other.getsockname()[1]
    job_id = here("submit", "--any", 1, "--check", "none", "--port", port, "--", *SLEEP).out.split()[1]
    told = here("submit", "--any", 1, "--check", "none", "--port", port, "--", *SLEEP)
    told.refused(f"port {port} is in use by job {job_id}")
    assert here("stop", job_id, "--wait").code == 0
    again = here("submit", "--any", 1, "--check", "none", "--port", port, "--wait", "--", "true")
    assert again.code == 0, "the port is free again"


def test_nodes_in_use_are_named_with_their_job(here: Command, live: LiveController) -> None:
    job_id = here("submit", "--nodes", "node-2", "--check", "none", "--", *SLEEP).out.split()[1]
    told = here("submit", "--nodes", "node-1,node-2", "--check", "none", "--", "true")
    told.refused(f"node-2: in use by job {job_id}")
    assert live.side.node("node-1").claimable
    assert here("stop", job_id, "--wait").code == 0


def test_an_id_is_used_once(here: Command, live: LiveController, tmp_path: Path) -> None:
    args = ("submit", "--any", 1, "--check", "none", "--id", "only-once")
    assert here(*args, "--wait", "--", "true").code == 0
    before = live.job("only-once")
    kept = tmp_path / "kept"
    told = here(*args, "--checkpoint-dir", kept, "--", "false")
    told.refused("job only-once exists already (COMPLETE)", "gpu-recovery retry only-once")
    assert live.job("only-once") == before
    assert not kept.exists()


class TestStates:
    """State folders that can't be used."""

    def test_no_control_plane_at_all(self, command: Command, tmp_path: Path) -> None:
        for args in (("jobs",), ("nodes",), ("job", "x"), ("submit", "--any", 1, "--", "true"), ("notices",)):
            told = command(*args[:1], "--state", tmp_path / "none", *args[1:])
            told.refused("there is no control plane in", "gpu-recovery up --state")
        assert not (tmp_path / "none").exists(), "looking makes nothing"

    @pytest.mark.parametrize("damage", ["garbage", "cut", "newer"])
    def test_a_damaged_database(self, command: Command, tmp_path: Path, damage: str) -> None:
        path = tmp_path / "recovery.db"
        if damage == "garbage":
            path.write_bytes(random.Random(2).randbytes(50_000))
        else:
            conn = sqlite3.connect(path)
            conn.execute("CREATE TABLE x (y)")
            conn.executemany("INSERT INTO x VALUES (?)", [("z" * 500,)] * 500)
            conn.execute(f"PRAGMA user_version={SCHEMA_VERSION + (damage == 'newer')}")
            conn.commit()
            conn.close()
        if damage == "cut":
            path.write_bytes(path.read_bytes()[:9000])
        before = path.read_bytes()
        words = "was written by a newer release" if damage == "newer" else "is damaged"
        for args in (("jobs",), ("nodes",), ("submit", "--any", "1", "--", "true"), ("up",)):
            command(args[0], "--state", tmp_path, *args[1:]).refused(words)
        assert path.read_bytes() == before
        assert not (tmp_path / "checkpoints").exists()
        assert command("doctor", "--state", tmp_path).code == 1

    @pytest.mark.parametrize("place", ["/proc/nowhere", "/dev/null/below", "a file"])
    def test_a_state_folder_that_cannot_be_written(
        self, command: Command, tmp_path: Path, place: str
    ) -> None:
        (tmp_path / "file").touch()
        state = tmp_path / "file" if place == "a file" else Path(place)
        command("up", "--state", state).refused("cannot be used as a state folder")

    def test_an_environment_that_makes_no_sense(self, here: Command, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MAX_RETRIES", "many")
        monkeypatch.setenv("STOP_TIMEOUT_S", "0")
        here("jobs").refused("MAX_RETRIES='many': use a whole number", "STOP_TIMEOUT_S='0'")
        monkeypatch.undo()
        monkeypatch.setenv("GPU_RECOVERY_WEBHOOK", "ftp://x")
        here("jobs").refused("must be an http(s) address")


def test_submit_waits_until_enough_nodes_are_free_and_not_for_more_than_there_are(here: Command) -> None:
    first = here("submit", "--any", 2, "--check", "none", "--json", "--", "sleep", "2").data["id"]
    told = here("submit", "--any", 2, "--check", "none", "--wait", "--", "true")
    assert (told.code, here("job", first, "--json").data["status"]) == (0, "COMPLETE")
    assert "the job waits for 1 of 2 nodes: 1 are free" in told.err
    never = here("submit", "--any", 4, "--check", "none", "--wait", "--", "true")
    never.refused("it wants 4 nodes, and the fleet has 3 that fit, so waiting does not help")


@pytest.mark.parametrize(
    ("line", "code", "error", "hint"),
    [
        ("job --json", 2, "Missing argument", "COMMAND --help"),
        ("nope --json", 2, "No such command", "gpu-recovery --help"),
        ("node show --json --nope n", 2, "No such option: --nope", "COMMAND --help"),
        ("job nothing --json", 3, "nothing", "gpu-recovery jobs"),
        ("submit --any 99 --json -- true", 4, "it wants 99 free nodes", "the error says why"),
        ("nodes --json --backend https://127.0.0.1:1", 5, "can't be reached", "try again"),
    ],
)
def test_a_script_is_told_what_is_wrong_in_one_object(
    here: Command, line: str, code: int, error: str, hint: str
) -> None:
    told = here(*line.split())
    told.refused(code=code)
    what = json.loads(told.err)
    assert (what["exit_code"], error in what["error"], hint in what["hint"]) == (code, True, True), what
    assert "What there is" not in what["error"], "that is the hint"
    assert here(*line.replace("--json ", "").split()).code == code, "as it is for a person"


def test_the_words_of_a_jobs_own_command_ask_for_no_json(here: Command) -> None:
    here("submit", "--any", "99", "--", "true", "--json").refused("gpu-recovery: ")
