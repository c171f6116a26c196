"""The CDK app. `cdk synth` and `cdk deploy` run it; `python app.py` alone writes the templates to cdk.out.

It needs no AWS account, no Docker and, once the requirements are installed, no network. With -c NAME=VALUE:

    arch=x86_64      build the functions for that architecture instead of arm64
    synthesizer=cli  deploy with the caller's own rights instead of the bootstrap roles
    nag=true         check the templates against the AWS Solutions rules (needs cdk-nag)
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import aws_cdk as cdk

ROOT = Path(__file__).resolve().parent


def make_app(
    env: Mapping[str, str],
    *,
    outdir: str | None = None,
    context: Mapping[str, Any] | None = None,
    asset: Path | None = None,
) -> cdk.App:
    """The app with its one stack, ready to synthesize. `context` comes before that of cdk.json.

    `asset` is the folder that the functions run; it is built unless one is given.
    """
    from ecs_gpu_recovery.config import Config

    config = Config.from_env(env)
    pinned = ROOT / "node_modules" / ".bin" / "node"
    if pinned.exists():
        os.environ.setdefault("JSII_NODE", str(pinned))
    import aws_cdk as cdk

    from ecs_gpu_recovery.ecs_gpu_recovery_stack import EcsGpuRecoveryStack
    from tools import build_lambda

    standing = json.loads((ROOT / "cdk.json").read_text(encoding="utf-8"))["context"]
    app = cdk.App(outdir=outdir, context={**standing, **(context or {})})
    arch = app.node.try_get_context("arch") or "arm64"
    if arch not in build_lambda.PLATFORMS:
        raise SystemExit(f"-c arch={arch}: use one of {', '.join(build_lambda.PLATFORMS)}")
    EcsGpuRecoveryStack(
        app,
        "EcsGpuRecoveryStack",
        stack_name=config.STACK_NAME,
        description="Keeps multi-node GPU training jobs alive on Amazon ECS",
        synthesizer=_synthesizer(app),
        config=config,
        asset=asset or build_lambda.ensure(arch),
        arch=arch,
    )
    if app.node.try_get_context("nag"):
        from cdk_nag import AwsSolutionsChecks

        cdk.Validations.of(app).add_plugins(AwsSolutionsChecks(app))
    return app


def _synthesizer(app: cdk.App) -> cdk.IStackSynthesizer:
    import aws_cdk as cdk

    wanted = app.node.try_get_context("synthesizer") or "default"
    if wanted not in ("default", "cli"):
        raise SystemExit(f"-c synthesizer={wanted}: use default or cli")
    return cdk.CliCredentialsStackSynthesizer() if wanted == "cli" else cdk.DefaultStackSynthesizer()


def _prepare() -> None:
    """Says what is missing before something deep inside fails for want of it."""
    try:
        schema = metadata.version("aws-cdk-cloud-assembly-schema")
        metadata.version("aws-cdk-lib")
    except metadata.PackageNotFoundError:
        sys.exit(
            "The requirements are not installed. Activate your virtual environment and run\n"
            "  pip install -r requirements.txt"
        )
    speaks = os.environ.get("CDK_CLI_ASM_VERSION", schema)
    if int(speaks.partition(".")[0]) < int(schema.partition(".")[0]):
        cli, library = os.environ.get("CDK_CLI_VERSION", "?"), metadata.version("aws-cdk-lib")
        sys.exit(
            f"This cdk command ({cli}) cannot read what aws-cdk-lib {library} writes.\n"
            "Use the one that is pinned here (npm ci, then: npx cdk), or: npm install -g aws-cdk@2.1147.0"
        )


def main() -> None:
    _prepare()
    from ecs_gpu_recovery.config import ConfigError
    from tools.project import ProblemError

    try:
        make_app(os.environ, outdir=os.environ.get("CDK_OUTDIR", str(ROOT / "cdk.out"))).synth()
    except (ConfigError, ProblemError) as problem:
        sys.exit(str(problem))
    except FileNotFoundError as missing:
        if missing.filename != "node":
            raise
        sys.exit("Node.js is needed. Install the one that is pinned here with: npm ci")


if __name__ == "__main__":
    main()
