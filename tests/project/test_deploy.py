"""The files in deploy/ name options, paths and files that exist. Where docker runs, the image is built."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from superbloom.cli import app as command_line
from superbloom.config import Settings
from superbloom.serve.app import make_app
from tests.support import serving

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
INSTRUCTIONS = {"FROM", "WORKDIR", "COPY", "ARG", "RUN", "USER", "ENV", "EXPOSE", "HEALTHCHECK", "ENTRYPOINT"}


def options() -> set[str]:
    """The environment variables of `superbloom serve`."""
    parameters = typer.main.get_command(command_line).commands["serve"].params
    return {parameter.envvar for parameter in parameters if parameter.envvar}


def paths() -> set[str]:
    return set(make_app(serving.of_names()).openapi()["paths"])


def instructions(text: str) -> list[tuple[str, str]]:
    """The instructions of a Dockerfile, lines joined and comments left out."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    found = [line.split(maxsplit=1) for line in "\n".join(lines).replace("\\\n", " ").splitlines()]
    return [(name, rest.strip()) for name, rest in found]


def faults_of_image(text: str) -> list[str]:
    found, faults = instructions(text), []
    names = [name for name, _ in found]
    if names[0] != "FROM" or not set(names) <= INSTRUCTIONS or names[-1] != "ENTRYPOINT":
        faults.append(f"instructions {names}")
    given = dict(found)
    if given.get("USER") in (None, "0", "root"):
        faults.append("it runs as root")
    if json.loads(given["ENTRYPOINT"]) != ["superbloom", "serve"]:
        faults.append("another command")
    faults += [f"{name} is no option" for name in re.findall(r"(\w+)=", given["ENV"]) if name not in options()]
    for name, rest in found:
        sources = rest.split()[:-1] if name == "COPY" else []
        faults += [f"{source} does not exist" for source in sources if not (ROOT / source).exists()]
    checked = re.findall(r"127\.0\.0\.1:(\d+)(/\w+)", given["HEALTHCHECK"])
    faults += [f"{path} at {port}" for port, path in checked if path not in paths() or port != given["EXPOSE"]]
    return faults if checked else [*faults, "nothing is checked"]


def test_the_dockerfile_is_sound():
    text = (DEPLOY / "Dockerfile").read_text()
    assert faults_of_image(text) == []
    for good, bad, fault in (
        ("USER 10001", "USER root", "it runs as root"),
        ("SUPERBLOOM_BROWSER", "SUPERBLOOM_BROWSE", "SUPERBLOOM_BROWSE is no option"),
        ("COPY src src", "COPY source src", "source does not exist"),
        ("/readyz", "/alive", "/alive at 8000"),
    ):
        assert faults_of_image(text.replace(good, bad)) == [fault]


def test_compose_gives_options_that_exist():
    (service,) = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"].values()
    build = service["build"]
    assert (DEPLOY / build["context"] / build["dockerfile"]).resolve() == DEPLOY / "Dockerfile"
    assert set(service["environment"]) <= options()
    assert "SUPERBLOOM_API_KEY" in service["environment"]  # the image listens on all addresses
    ports = [port.rsplit(":", 1)[1] for port in service["ports"]]
    assert ports == [dict(instructions((DEPLOY / "Dockerfile").read_text()))["EXPOSE"]]
    assert float(service["stop_grace_period"].rstrip("s")) > Settings.seconds


def containers() -> list[Any]:
    documents = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))
    assert [document["kind"] for document in documents] == ["Deployment", "Service"]
    template = documents[0]["spec"]["template"]
    assert template["metadata"]["labels"] == documents[0]["spec"]["selector"]["matchLabels"]
    assert template["metadata"]["labels"] == documents[1]["spec"]["selector"]
    assert template["spec"]["terminationGracePeriodSeconds"] > Settings.seconds
    return template["spec"]["containers"]


def test_kubernetes_asks_paths_that_exist():
    (container,) = containers()
    assert {variable["name"] for variable in container["env"]} <= options()
    asked = {name: probe["httpGet"]["path"] for name, probe in container.items() if name.endswith("Probe")}
    assert asked == {"startupProbe": "/readyz", "readinessProbe": "/readyz", "livenessProbe": "/livez"}
    assert set(asked.values()) <= paths()
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert {probe["httpGet"]["port"] for name, probe in container.items() if name.endswith("Probe")} <= set(ports)
    assert str(ports["http"]) == dict(instructions((DEPLOY / "Dockerfile").read_text()))["EXPOSE"]


@pytest.mark.slow
def test_the_image_is_built():
    if not shutil.which("docker") or subprocess.run(["docker", "info"], capture_output=True).returncode:
        pytest.skip("no Docker engine runs here")
    command = ["docker", "build", "--quiet", "--file", str(DEPLOY / "Dockerfile"), str(ROOT)]
    image = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    done = subprocess.run(["docker", "run", "--rm", image, "--help"], capture_output=True, text=True, check=True)
    assert "SUPERBLOOM_MODEL" in done.stdout
