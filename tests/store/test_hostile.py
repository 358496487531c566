"""A hostile folder is refused in one line, without a crash, a read outside it or much memory (check 16).

Each twin leaves out one check of the code; the folders that this check refuses must be noticed.
"""

import os
import shutil
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from superbloom import cli
from superbloom.api import Superbloom
from superbloom.errors import InputError
from superbloom.storage import folder as folder_module
from superbloom.storage.folder import MANIFESTS
from tests.support.edits import Edit, columns_edit, manifest_edit, nested, replaced, resealed, set_model, tensors_edit
from tests.support.folders import PLAIN, Outcome
from tests.support.hostile import HARMLESS, HOSTILE
from tests.support.probe import NO_VALIDATION, WATCHED, Change, Job, probe
from tests.support.traced import untraced

Hostile = Sequence[tuple[str, str, Edit, str | None]]
ROOM = 48  # megabytes that opening a small folder and asking takes


def kind_of(base: str) -> str:
    return base.rpartition("-")[2]


def made(good: Path, parent: Path, hostile: Hostile) -> list[Job]:
    """The folders of these edits, each in a place of its own."""
    jobs = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(folder_module, "fsync", lambda _: None)  # which takes most of the time
        for number, (base, _, edit, _) in enumerate(hostile):
            kind = kind_of(base)
            shutil.copytree(good / base, parent / str(number) / kind)
            (parent / str(number) / "other").symlink_to(good / "other")
            edit(parent / str(number) / kind)
            jobs.append((kind, parent / str(number) / kind, True))
    return jobs


def harms(
    good: Path, parent: Path, hostile: Hostile, broken: Sequence[Sequence[Change]] | None = None
) -> dict[str, list[str]]:
    """What each hostile folder does that it must not: nothing, as long as it is refused, in one line, for little."""
    jobs = made(good, parent, hostile)
    warm = [good / name for name in ("model", "text-model", "log-corpus", "text-corpus")]
    outcomes = probe(warm, jobs, broken, trace=None if untraced(*WATCHED) else parent / "trace")
    found = enumerate(zip(hostile, jobs, outcomes, strict=True))
    wrong = {f"{n} {h[0]}: {h[1]}": harm(told, h[3], folder) for n, (h, (_, folder, _), told) in found}
    return {what: how for what, how in wrong.items() if how}


def harm(found: Outcome, says: str | None, folder: Path, room: int = ROOM) -> list[str]:
    wrong = []
    if found["outcome"] != "refused" and not (says is None and found["outcome"] == "accepted"):
        wrong.append(found["outcome"])
    if found["outcome"] == "refused" and (says or "") not in found["message"]:
        wrong.append(f"does not say {says}: {found['message']}")
    if not found["message"].isprintable() or len(found["message"]) > 600:
        wrong.append(f"not one line: {found['message']!r:.700}")
    on_disk = sum(file.stat().st_blocks * 512 for file in folder.iterdir() if file.is_file()) / 2**20
    if found["megabytes"] > room + 2 * on_disk:
        wrong.append(f"{found['megabytes']} MB of {on_disk:.0f}")
    return wrong + [f"opens {path}" for path in found.get("outside", [])]


@pytest.mark.system
@pytest.mark.parametrize("every", [10, pytest.param(1, marks=pytest.mark.slow)])
def test_a_hostile_folder_does_no_harm(good, tmp_path, every, check):
    hostile, harmless = HOSTILE[::every], HARMLESS[::every]
    assert harms(good, tmp_path, [*hostile, *harmless]) == {}
    reads = untraced(*WATCHED) or "0 reads or writes outside"
    check(
        16,
        f"{len(hostile)} of {len(HOSTILE)} hostile folders refused in one line, {len(harmless)} of {len(HARMLESS)} odd "
        f"ones without harm: 0 signals, {reads}, none takes more than {ROOM} MB and twice its size",
    )


# Parts of the code that keep one kind of hostile folder out, and which those are.
NO_NAMES = (
    "superbloom.storage.folder:read_folder",
    "if name not in REQUIRED_FILES[kind] + OPTIONAL_FILES[kind]:",
    "if False:",
)
NO_LINKS = ("superbloom.storage.folder:_check_place", "if leads_out(file):", "if False:")
KEPT_OUT: dict[str, tuple[list[Change], list[str]]] = {
    "names of files are not looked at": (
        [NO_NAMES, NO_LINKS],
        ["a file '../x'", "a file '/etc/passwd'"],
    ),
    "links are followed": (
        [NO_LINKS],
        ["config.json is a link to a file elsewhere", "config.json is a link to a link elsewhere"],
    ),
    "ids in hash tables are not compared": (
        [("superbloom.hashing.bloom:BloomHash.verify", "if not sound:", "if False:")],
        ["hashes: bucket far too large", "hashes: id negative", "hashes: start too large"],
    ),
    "Arrow tables are not validated": (
        [NO_VALIDATION],
        ["vocab.arrow: names with an offset below zero", "vocab.arrow: names with offsets out of order"],
    ),
    "sizes are not bounded": (
        [("superbloom.storage.folder:read_json", "> MAX_JSON_VALUES", "< 0")],
        ["metrics b'{\"a\":[[]'"],
    ),
}


SEEN_BY_TRACE = ("links are followed",)  # what was read is refused in the same words
UNDEFINED = ("Arrow tables are not validated",)  # what follows is chance: some folders may be refused all the same


@pytest.mark.system
def test_harm_is_noticed_where_a_check_is_left_out(good, tmp_path, check):
    """The twins: the same measurement of code without one of its checks."""
    chosen = {what: [one for one in HOSTILE if one[1] in names] for what, (_, names) in KEPT_OUT.items()}
    hostile = [one for some in chosen.values() for one in some]
    noticed = harms(good, tmp_path, hostile, [KEPT_OUT[what][0] for what, some in chosen.items() for _ in some])
    end = 0
    for what, some in chosen.items():
        begin, end = end, end + len(some)
        if what in SEEN_BY_TRACE and untraced(*WATCHED):
            continue
        found = [how for name, how in noticed.items() if begin <= int(name.split()[0]) < end]
        assert len(some) >= len(KEPT_OUT[what][1])
        assert len(found) == len(some) or (found and what in UNDEFINED), what
        kinds = Counter(how[0].split("/")[0].strip() for how in found)
        check.twin(16, what, f"{len(found)} of {len(some)} flagged: {', '.join(kinds)[:200]}")


def test_a_folder_resealed_without_an_edit_is_accepted(good, tmp_path):
    """The control: none of the above was refused for how it was sealed."""
    for kind in MANIFESTS:
        shutil.copytree(good / kind, tmp_path / "sealed" / kind)
        resealed(kind, lambda _: None)(tmp_path / "sealed" / kind)
        shutil.copytree(good / kind, tmp_path / "written" / kind)
        manifest_edit(kind, lambda _: None)(tmp_path / "written" / kind)
    columns_edit("model", "vocab.arrow", by_name=None)(tmp_path / "sealed" / "model")
    tensors_edit("model.safetensors", lambda _: None)(tmp_path / "sealed" / "model")
    set_model("seq_len", 32)(tmp_path / "sealed" / "model")
    jobs = [(kind, tmp_path / way / kind, True) for way in ("sealed", "written") for kind in MANIFESTS]
    outcomes = probe([good / "model"], jobs)
    assert [found["outcome"] for found in outcomes] == ["accepted"] * 4


COMMANDS = {
    "model": [
        ["predict", "MODEL", "name 1"],
        ["serve", "MODEL", "--port", "0"],
        ["evaluate", "MODEL", "CORPUS"],
        ["recommend", "MODEL", "CORPUS"],
        ["inspect", "MODEL"],
        ["extend", "MODEL", "NAMES", "--out", "OUT"],
        ["train", "CORPUS", "--from-model", "MODEL", "--out", "OUT", "--steps", "1"],
    ],
    "corpus": [
        ["evaluate", "MODEL", "CORPUS"],
        ["recommend", "MODEL", "CORPUS"],
        ["inspect", "CORPUS"],
        ["train", "CORPUS", "--out", "OUT", "--steps", "1"],
        ["train", "CORPUS", "--out", "OUT", "--resume", "--steps", "1"],
        ["reproduce", "CORPUS", "--out", "OUT"],
    ],
}
SENT = {
    "model": ["vocab.arrow: by_name far too large", "hashes: id negative", "an escape sequence as its release"],
    "corpus": ["sequences: ids far too large", "vocab.arrow: names with an offset below zero"],
}


@pytest.mark.system
@pytest.mark.parametrize("few", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_every_command_refuses_hostile_folders(good, tmp_path, few, check):
    """All of them open a folder by the same two functions; so each is tried with a few, or with one of these."""
    (tmp_path / "names").write_text("new\n")
    chosen = [one for one in HOSTILE if one[1] in SENT[kind_of(one[0])] and one[0] == kind_of(one[0])]
    folders = [(one[0], one[3], job[1]) for one, job in zip(chosen, made(good, tmp_path, chosen), strict=True)]
    jobs, says = [], []
    for kind, (turn, words) in [(kind_, one) for kind_, some in COMMANDS.items() for one in enumerate(some)]:
        own = [(told, folder) for of, told, folder in folders if of == kind]
        for told, folder in own[turn % len(own) :][:1] if few else own:
            place = {"MODEL": good / "plain-model", "CORPUS": good / "plain-corpus", "OUT": tmp_path / "out"}
            place |= {kind.upper(): folder, "NAMES": tmp_path / "names"}
            jobs.append(("command", folder, [str(place.get(word, word)) for word in words]))
            says.append(told)
    outcomes = probe([good / "model"], jobs)
    wrong = {
        " ".join(job[2]): how
        for job, told, found in zip(jobs, says, outcomes, strict=True)
        if (how := harm(found, told, job[1], room=200))  # what a command imports takes memory, too
    }
    assert wrong == {}
    assert not (tmp_path / "out").exists()
    check(16, f"{len(jobs)} commands with hostile folders: all refused in one line")


def test_a_card_elsewhere_is_not_copied(good, tmp_path):
    shutil.copytree(good / "plain-model", tmp_path / "model")
    (tmp_path / "secret").write_text("secret")
    replaced(tmp_path / "model", "README.md", lambda path: path.symlink_to(tmp_path / "secret"))
    model = Superbloom.from_pretrained(tmp_path / "model")
    with pytest.raises(InputError, match="README.md leads out of its folder"):
        model.save_pretrained(tmp_path / "model")
    assert Superbloom.from_pretrained(tmp_path / "model").predict(["name 1"], k=1)


def test_a_manifest_that_is_a_pipe_is_not_waited_for(good, tmp_path):
    shutil.copytree(good / "plain-model", tmp_path / "model")
    replaced(tmp_path / "model", "config.json", os.mkfifo)
    with pytest.raises(InputError, match="is not a model folder"):
        plain_model(good).save_pretrained(tmp_path / "model")


def test_what_a_hostile_manifest_lists_is_not_removed(good, tmp_path):
    shutil.copytree(good / "plain-model", tmp_path / "model")
    manifest_edit("model", lambda m: m["files"].__setitem__("thesis.txt", {"bytes": 1, "sha256": ""}))(
        tmp_path / "model"
    )
    (tmp_path / "model" / "thesis.txt").write_text("x")
    with pytest.raises(InputError, match="also holds 'thesis.txt'"):
        plain_model(good).save_pretrained(tmp_path / "model")


def test_a_checkpoint_is_not_written_through_a_link(tmp_path):
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".checkpoint").symlink_to(tmp_path / "mine")
    small = Superbloom(alpha=2, dim=8, ffn_dim=8, heads=2, layers=1)
    small.fit(PLAIN, steps=1, run=tmp_path / "run", resume=True, quiet=True)
    assert (tmp_path / "mine").read_text() == "mine"
    shutil.rmtree(tmp_path / "run" / "tensorboard")
    (tmp_path / "run" / "tensorboard").symlink_to(tmp_path)
    with pytest.raises(InputError, match="tensorboard is a link"):
        small.fit(PLAIN, steps=2, run=tmp_path / "run", resume=True, quiet=True)


def test_inspect_shows_nothing_that_steers_the_terminal(good, tmp_path, capsys, monkeypatch):
    odd = {
        "\x1b[2J": "\x1b",
        "list\x1b": ["\x1b", nested(800)],
        "deep": dict_nested(800),
        "lone": "\ud800",
        "c1": "\x9b",
    }
    shutil.copytree(good / "corpus", tmp_path / "corpus")
    manifest_edit("corpus", lambda m: m["info"].update(odd))(tmp_path / "corpus")
    for options in ([], ["--json"]):
        monkeypatch.setattr(sys, "argv", ["superbloom", "inspect", str(tmp_path / "corpus"), *options])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert ended.value.code == 0
        assert "".join(capsys.readouterr().out.split("\n")).isprintable()


def dict_nested(depth: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for _ in range(depth):
        found = {"x": found}
    return found


def plain_model(good: Path) -> Superbloom:
    return Superbloom.from_pretrained(good / "plain-model")
