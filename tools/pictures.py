"""Pictures for the documentation, taken from the product itself: `make pictures`.

One in the terminal (the demo's story) and some of the web console in a real browser, while a job loses a GPU and
heals. Needs Chromium: the one of the system, or whatever CHROMIUM names.
"""

from __future__ import annotations

import argparse
import base64
import os
import re
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from ecs_gpu_recovery.console.access.auth import hash_password
from ecs_gpu_recovery.console.app import serve
from ecs_gpu_recovery.control.console_link import ConsoleLink
from ecs_gpu_recovery.control.local_backend import LocalBackend
from ecs_gpu_recovery.core.model import Job, JobStatus
from ecs_gpu_recovery.jobfile import parse
from ecs_gpu_recovery.local.controller import Controller, NodeWish
from ecs_gpu_recovery.local.wiring import LOCAL_POLICY
from ecs_gpu_recovery.metrics.collector import Collector
from ecs_gpu_recovery.serve import demo
from tools.browser import FLAGS, ensure

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

PICTURES = Path("docs/pictures")
WIDTH = 112
PATIENCE_S = 120.0
LARGEST = 150 * 1024
NODES = 8
BOOT_S, REBOOT_SEEN_S = 6.0, 3.0
DESK, PHONE, WALL = (1280, 900), (360, 740), (3840, 2160)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shot:
    """One picture: what is shown, how large, in which light and language."""

    name: str
    path: str
    size: tuple[int, int] = DESK
    scheme: str = "light"
    language: str = "en"
    whole: bool = False  #: the page to its end, not only what fits on the screen
    kept: bool = False  #: part of the documentation; the others are for whoever looks after the pages


def terminal_picture(fault: str) -> str:
    """A demo run as an SVG. The fonts of the reader's machine are used; nothing is fetched."""
    console = Console(
        record=True,
        width=WIDTH,
        force_terminal=True,
        color_system="truecolor",
        highlight=False,
        file=sys.stdout,
    )
    demo.console = lambda: console  # type: ignore[attr-defined]
    if demo.run_demo(fault=fault, nodes=4, steps=160, state=None, as_json=False) != 0:
        raise SystemExit("the demo did not end as it should; no picture was taken")
    svg = console.export_svg(title="make demo", unique_id="demo")
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
    return svg.replace("Fira Code", "ui-monospace, Menlo, Consolas, DejaVu Sans Mono")


# -- the console ------------------------------------------------------------------------------------------


def eventually(condition: Callable[[], object], what: str) -> None:
    limit = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > limit:
            raise SystemExit(f"no picture was taken: {what} did not happen within {PATIENCE_S:.0f} s")
        time.sleep(0.05)


class World:
    """A control plane with simulated nodes, which can be made to hold still for a picture."""

    def __init__(self, controller: Controller) -> None:
        self.controller = controller
        self._stop = threading.Event()
        self._loop = threading.Thread()

    def go_on(self) -> None:
        self._stop.clear()
        self._loop = threading.Thread(target=self.controller.run, args=(self._stop,))
        self._loop.start()

    def hold_still(self) -> None:
        self._stop.set()
        self._loop.join()


@contextmanager
def control_plane(state: Path) -> Iterator[World]:
    wishes = [NodeWish(name=f"gpu-{i + 1:02d}", gpus=8, boot_seconds=BOOT_S) for i in range(NODES)]
    policy = replace(LOCAL_POLICY, node_lost_after=timedelta(seconds=5))
    with Controller(state, nodes=wishes, policy=policy) as controller:
        world = World(controller)
        world.go_on()
        try:
            store = controller.parts.store
            eventually(lambda: all(node.claimable for node in store.nodes()), "the start of the nodes")
            with Collector(controller.parts, controller.looks):
                yield world
        finally:
            world.hold_still()
            controller.parts.cluster.shutdown()


def submit(side: LocalBackend, name: str, nodes: list[str], steps: int, *, step_s: float = 0.04) -> Job:
    command = [sys.executable, "-m", "ecs_gpu_recovery.examples.train", "--steps", str(steps)]
    command += ["--step-seconds", str(step_s), "--checkpoint-every", "20"]
    return side.submit(parse({"name": name, "nodes": nodes, "command": command}, python=sys.executable))


class Studio:
    """A control plane with something going on, a console, and a browser."""

    def __init__(self, world: World, side: LocalBackend, browser: Browser, link: ConsoleLink) -> None:
        self.world, self._side, self._browser, self._link = world, side, browser, link
        self._names = [node.name for node in side.nodes()]

    def job(self, job_id: str) -> Job:
        return self._side.job(job_id)

    def is_at(self, job_id: str, status: JobStatus, attempt: int = 0) -> bool:
        found = self.job(job_id)
        if found.status.final and status != found.status:
            raise SystemExit(f"no picture was taken: {job_id} is {found.status}: {found.outcome}")
        return found.status is status and found.attempt >= attempt

    def steps(self, job_id: str) -> int:
        path = Path(self.job(job_id).spec.checkpoint_dir) / "progress.jsonl"
        return len(path.read_text().splitlines()) if path.exists() else 0

    def prepare(self) -> str:
        """A past: one job that failed for its node's sake, one that ended well, one node set aside."""
        side, names = self._side, self._names
        bad = submit(side, "vision-ablation", names[6:8], 4000).id
        good = submit(side, "bert-finetune", names[0:2], 60, step_s=0.02).id
        eventually(lambda: self.steps(bad) > 5, "the first steps")
        self.world.controller.parts.cluster.inject(names[7], "permanent")
        eventually(lambda: self.is_at(bad, JobStatus.FAILED), "a job that fails")
        eventually(lambda: self.is_at(good, JobStatus.COMPLETE), "a job that ends")
        side.ask_node(names[5], "drain", why="firmware update on Thursday")
        return bad

    def recovery(self) -> str:
        """Two jobs that run; one has lost a GPU and waits for its node."""
        submit(self._side, "rlhf-reward", self._names[4:5], 100_000)
        main = submit(self._side, "llama-pretrain", self._names[0:4], 420).id
        eventually(lambda: self.steps(main) > 210, "training")
        self.world.controller.parts.cluster.inject(self._names[2], "off-bus")
        eventually(lambda: self.is_at(main, JobStatus.PENDING_RESTART, 1), "a recovery")
        time.sleep(REBOOT_SEEN_S)  # the wait is a part of the picture
        self.world.hold_still()
        return main

    def take(self, shot: Shot, folder: Path, act: Callable[[Page], None] | None = None) -> None:
        width, height = shot.size
        context = self._browser.new_context(
            base_url=self._link.address,
            viewport={"width": width, "height": height},
            color_scheme="dark" if shot.scheme == "dark" else "light",
            locale="zh-CN" if shot.language == "zh" else "en-GB",
            reduced_motion="reduce",
        )
        page = context.new_page()
        page.goto(self._link.page(shot.path))
        if page.locator("#pulse").count():
            page.locator("#pulse.on").wait_for()
        if act is not None:
            act(page)
        page.wait_for_timeout(700)
        data = page.screenshot(full_page=shot.whole)
        (folder / f"{shot.name}.png").write_bytes(data)
        if shot.kept:
            PICTURES.mkdir(parents=True, exist_ok=True)
            (PICTURES / f"{shot.name}.webp").write_bytes(as_webp(page, data))
        context.close()
        print(f"  {shot.name}", flush=True)


def as_webp(page: Page, png: bytes) -> bytes:
    """Smaller by far, made by the browser itself."""
    page.goto("about:blank")
    script = """async (data) => {
      const picture = new Image();
      picture.src = "data:image/png;base64," + data;
      await picture.decode();
      const canvas = new OffscreenCanvas(picture.width, picture.height);
      canvas.getContext("2d").drawImage(picture, 0, 0);
      const made = await canvas.convertToBlob({ type: "image/webp", quality: 0.82 });
      const bytes = new Uint8Array(await made.arrayBuffer());
      let text = "";
      for (let at = 0; at < bytes.length; at += 32768) text += String.fromCharCode(...bytes.subarray(at, at + 32768));
      return btoa(text);
    }"""
    made = base64.b64decode(page.evaluate(script, base64.b64encode(png).decode()))
    if len(made) > LARGEST:
        raise SystemExit(f"a picture has {len(made) >> 10} KiB, more than {LARGEST >> 10}: show less on it")
    return made


def _filled(page: Page) -> None:
    """The form as somebody leaves it before the last look."""
    page.get_by_label("A short name").fill("llama-pretrain")
    page.locator("#template-command").select_option(index=2)
    page.get_by_role("button", name="Preview").click()
    page.locator("#preview").get_by_text("MASTER_ADDR", exact=False).first.wait_for()


def console_pictures(folder: Path, *, everything: bool) -> None:
    from playwright.sync_api import sync_playwright

    chromium = ensure()
    state = Path(tempfile.mkdtemp(prefix="gpu-recovery-pictures-"))
    os.environ["LOGNAME"] = "olga"  # whoever takes the pictures is not on them
    try:
        with control_plane(state) as world, sync_playwright() as driver:
            side = LocalBackend(state)
            served = serve(lambda: LocalBackend(state), port=0, data=state / "console", state=state)
            browser = driver.chromium.launch(executable_path=chromium, args=[*FLAGS])
            try:
                eventually(lambda: served.server.started, "the start of the console")
                _session(Studio(world, side, browser, served.link), folder, everything=everything)
                if everything:
                    _sign_in(state, browser, folder)
            finally:
                browser.close()
                served.stop()
                side.close()
    finally:
        shutil.rmtree(state, ignore_errors=True)


def _session(studio: Studio, folder: Path, *, everything: bool) -> None:
    bad = studio.prepare()
    main = studio.recovery()
    job = f"/jobs/{main}"
    for scheme in ("light", "dark"):
        studio.take(Shot(name=f"overview-{scheme}", path="/", scheme=scheme, kept=True), folder)
        shot = Shot(name=f"recovery-{scheme}", path=job, size=(1280, 1140), scheme=scheme, kept=True)
        studio.take(shot, folder)
    if everything:
        studio.take(Shot(name="recovering", path=job, whole=True), folder)
    studio.world.go_on()
    eventually(lambda: studio.is_at(main, JobStatus.COMPLETE, 1), "the end of the recovery")
    studio.take(Shot(name="job", path=job, size=(1280, 1030)), folder)
    studio.take(Shot(name="new-job", path="/jobs/new", size=(1280, 1030), kept=True), folder, _filled)
    studio.take(Shot(name="node", path="/nodes/gpu-03", size=(1280, 1030), kept=True), folder)
    if not everything:
        return
    pages = {
        "overview": "/",
        "jobs": "/jobs",
        "new": "/jobs/new",
        "job": job,
        "failed": f"/jobs/{bad}",
        "node": "/nodes/gpu-03",
        "node-failed": "/nodes/gpu-08",
        "alerts": "/alerts",
        "missing": "/jobs/nothing",
    }
    for name, path in pages.items():
        studio.take(Shot(name=f"{name}-desk", path=path, whole=True), folder)
        studio.take(Shot(name=f"{name}-phone-dark", path=path, size=PHONE, scheme="dark", whole=True), folder)
        studio.take(Shot(name=f"{name}-wall", path=path, size=WALL), folder)
        studio.take(Shot(name=f"{name}-zh", path=path, language="zh", whole=True), folder)


def _sign_in(state: Path, browser: Browser, folder: Path) -> None:
    users = state / "users"
    users.write_text(f"olga:operator:{hash_password('a long enough one')}\n")
    users.chmod(0o600)
    served = serve(lambda: LocalBackend(state), port=0, data=state / "other", state=state, users_file=users)
    try:
        eventually(lambda: served.server.started, "the start of the console")
        page = browser.new_page(base_url=served.link.address)
        page.goto("/")
        page.screenshot(path=folder / "signin.png")
        page.close()
    finally:
        served.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--all", metavar="FOLDER", type=Path, help="every page in every size and light, as PNG"
    )
    parser.add_argument("--terminal", action="store_true", help="only the picture of the demo in a terminal")
    asked = parser.parse_args()
    PICTURES.mkdir(parents=True, exist_ok=True)
    if asked.all is None:
        (PICTURES / "demo.svg").write_text(terminal_picture("gpu"))
        print(f"wrote {PICTURES / 'demo.svg'}")
    if not asked.terminal:
        folder = asked.all or Path(tempfile.mkdtemp(prefix="gpu-recovery-pictures-"))
        folder.mkdir(parents=True, exist_ok=True)
        console_pictures(folder, everything=asked.all is not None)
        if asked.all is None:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
