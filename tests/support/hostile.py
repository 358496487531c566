"""Hostile folders (check 16): which folder, what was done, how, and what the message has to say.

HOSTILE must be refused. HARMLESS are odd and may be accepted, but must do no harm.
"""

import os
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch

from superbloom.storage import folder as folder_module
from superbloom.storage.folder import MANIFESTS
from tests.support.edits import (
    TEXT,
    Edit,
    batches,
    bomb,
    bound,
    columns_edit,
    compressed,
    described,
    each,
    elsewhere,
    filled,
    header_edit,
    hollow,
    manifest_edit,
    many_hashes,
    nested,
    of_another,
    outside,
    put,
    replaced,
    resealed,
    set_model,
    shift_last_row,
    swollen,
    tensors_edit,
    text_names,
    without_schema,
)
from tests.support.folders import FILES, TWO

LISTS = pa.large_list(pa.int32())
IDS = TWO.sequences["ids"].to_pylist()
NAMES = TWO.vocab.table["name"]
COUNTS = TWO.vocab.counts
ORDER = TWO.vocab.table["by_name"].to_numpy()
SIZE = len(NAMES)
FUTURE = {"version": 999, "superbloom": "\x1b[2J\nx"}
FLAT = NAMES.combine_chunks()
ONES = pa.array([1] * SIZE, pa.int32())
# Types of Arrow that are none of ours, as long as the names.
ODD = {
    "as views": FLAT.cast(pa.string_view()),
    "in structs": pa.StructArray.from_arrays([FLAT], ["x"]),
    "in runs": pa.RunEndEncodedArray.from_arrays(pa.array([SIZE], pa.int32()), FLAT[:1]),
    "in a union": pa.UnionArray.from_sparse(pa.array([0] * SIZE, pa.int8()), [FLAT]),
    "of nothing": pa.nulls(SIZE),
    "in lists of one": pa.FixedSizeListArray.from_arrays(FLAT, 1),
    "in views of lists": pa.ListViewArray.from_arrays(ONES, ONES, FLAT),
    "of an extension type": pa.array([b"x" * 16] * SIZE, pa.uuid()),
    "in maps": pa.MapArray.from_arrays(pa.array(range(SIZE + 1), pa.int32()), FLAT, FLAT),
}
OFFSETS = np.frombuffer(FLAT.buffers()[1], np.int64)[: SIZE + 1]
BAD_TEXT = {
    what: pa.LargeStringArray.from_buffers(SIZE, pa.py_buffer(offsets), data)
    for what, offsets, data in [
        ("offsets out of order", np.array([0, *OFFSETS[-2:0:-1], OFFSETS[-1]]), FLAT.buffers()[2]),
        ("an offset below zero", np.array([0, -5, *OFFSETS[2:]]), FLAT.buffers()[2]),
        ("bytes that are not UTF-8", OFFSETS.copy(), pa.py_buffer(b"\xff" * int(OFFSETS[-1]))),
    ]
}

# kind, what was done, how, and what the message has to say
HOSTILE: list[tuple[str, str, Edit, str]] = [
    *(
        ("model", f"{name}={value!r:.20}", set_model(name, value), "config.json")
        for name, value in [
            *(
                (name, value)
                for name in ("layers", "dim", "num_ids", "heads")
                for value in (10**9, 10**15, 10**40, -1, 0)
            ),
            *(("num_ids", value) for value in (13.0, "13", None, True, float("nan"), [13], {"13": 13}, nested(400))),
            *(("dim", value) for value in (float("inf"), float("nan"), 10**12, "a\nb", nested(400))),
            *(("ffn_dim", 10**15), ("alpha", 10**9), ("alpha", -2), ("num_special", 10**18), ("num_special", 3)),
            *(("num_target_ids", value) for value in (10**15, -1, "x", 2.0)),
            *(("target_alpha", value) for value in (10**15, -1, "x", 2.5, False)),
            *(("dropout", value) for value in ("x", float("nan"), -1, None, [0.0])),
            *(("norm", value) for value in ("both", 5, ["pre"], None)),
            *(("softmax", {}), ("positions", "yes"), ("positions", 1), ("tied", 0), ("tied", None)),
            *(("hash_seed", "x"), ("hash_seed", 0.5), ("seq_len", -1), ("seq_len", "long")),
            *(("seq_len", 10**9), ("seq_len", 10**18), ("seq_len", 10**40)),
            *(("evil\nkey", 1), ("layers ", 1)),
        ]
    ),
    *(
        ("model", f"{name}={value!r:.20} against the weights", set_model(name, value), "model.safetensors")
        for name, value in [
            *(("seq_len", 100_000), ("layers", 2), ("layers", 500)),
            *(("dim", 18), ("ffn_dim", 17), ("alpha", 1), ("num_ids", 9), ("num_special", 5), ("num_hashes", 3)),
            *(("positions", False), ("transform", True), ("output_bias", False), ("norm", "post")),
        ]
    ),
    ("model", "names of one vocabulary", set_model("num_target_ids", None), "model.safetensors"),
    *(
        (
            kind,
            f"{name}={value!r:.20}",
            manifest_edit(kind, lambda m, n=name, v=value: m.__setitem__(n, v)),
            MANIFESTS[kind],
        )
        for kind in MANIFESTS
        for name, value in [
            *(("version", value) for value in ("1", True, 999, 0, -1, 1.0, None, [1], 10**40)),
            *(("format", value) for value in ("their model", 5, None, ["superbloom model"], nested(400), "x" * 10**5)),
            *(("files", value) for value in ([], {}, None, "vocab.arrow", 5, ["vocab.arrow"], {"vocab.arrow": {}})),
            *(("sha256", value) for value in (None, 5, "", "0" * 64, nested(400))),
            *((name, value) for name in folder_module.CONTENTS[kind] for value in (None, 5, [])),
        ]
    ),
    *(
        (kind, f"no {name}", manifest_edit(kind, lambda manifest, name=name: manifest.pop(name)), MANIFESTS[kind])
        for kind in MANIFESTS
        for name in ("format", "version", "files", *folder_module.CONTENTS[kind])
    ),
    *(
        (kind, f"{name} not listed", manifest_edit(kind, lambda m, name=name: m["files"].pop(name)), name)
        for kind, name in FILES
        if name not in MANIFESTS.values() and (kind, name) != ("corpus", "targets.arrow")
    ),
    *(
        (
            "model",
            f"{part} is {value!r:.20}",
            manifest_edit("model", lambda m, p=part, v=value: m["files"]["vocab.arrow"].__setitem__(p, v)),
            "vocab.arrow",
        )
        for part, value in [
            *(("bytes", value) for value in ("1082", 1082.0, -1, None, True, [1082], 10**40, 2**62, nested(400))),
            *(("sha256", value) for value in (None, 5, "", ["x"], "\ud800\n", nested(400))),
        ]
    ),
    *(
        (
            "model",
            f"entry is {value!r:.20}",
            manifest_edit("model", lambda m, v=value: m["files"].__setitem__("vocab.arrow", v)),
            "vocab.arrow",
        )
        for value in (None, 5, "x", [], [1, 2], {}, {"bytes": 1}, nested(400))
    ),
    *(
        ("model", f"a file {name!r}", partial(outside, name=name), "config.json lists the file")
        for name in ("../x", "/etc/passwd", "", ".", "./x", "a/../../x", "x/", "x\0y", "two\nlines", "\ud800")
    ),
    *(
        ("model", f"a file {name!r:.20}", partial(outside, name=name), "config.json lists the file")
        for name in ("..", "x", "Vocab.arrow", "x" * 300, "x" * 10**5, "README.md", "config.json")
    ),
    (
        "model",
        "thousands of files",
        manifest_edit("model", lambda m: m["files"].update({f"f{i}": {"bytes": 1, "sha256": ""} for i in range(9999)})),
        "config.json lists the file",
    ),
    ("model", "an escape sequence as its release", manifest_edit("model", lambda m: m.update(FUTURE)), "config.json"),
    *(
        (kind, f"manifest {data[:8]!r}", partial(put, name=MANIFESTS[kind], data=data), MANIFESTS[kind])
        for kind in MANIFESTS
        for data in [
            *(b"", b"{", b"[]", b"5", b"NaN", b'"x"', b"null", b"\xff\xfe", b"\x00" * 100, b"{}" + b"\x00" * 100),
            *(b"[" * 10**5, b'{"a":' * 10**5, b"[" * 900 + b"]" * 900, b"[" * 990 + b"]" * 990),
            *(b'{"format": ' + b"9" * 10**5 + b"}", b"[" + b"{}," * 10**6 + b"{}]"),
        ]
    ),
    *(
        ("model", f"{name} is a {made}", partial(replaced, name=name, make=make), name)
        for name in ("vocab.arrow", "config.json", "metrics.json")
        for made, make in [
            ("pipe", os.mkfifo),
            ("folder", Path.mkdir),
            ("link to nothing", lambda path: path.symlink_to("nothing")),
            ("link to itself", lambda path: path.symlink_to(path.name)),
            ("link to an endless device", lambda path: path.symlink_to("/dev/zero")),
            ("link to a file elsewhere", elsewhere),
            ("link to a link elsewhere", lambda path: (elsewhere(path.with_name("x")), path.symlink_to("x"))),
            ("socket", bound),
        ]
    ),
    *(
        (kind, f"{name} is 200 GB of holes", partial(hollow, kind=kind, name=name), name)
        for kind, name in (("model", "vocab.arrow"), ("model", "model.safetensors"), ("corpus", "sequences.arrow"))
    ),
    ("model", "another file of 200 GB of holes", partial(hollow, kind="model", name="more"), "lists the file 'more'"),
    *(
        (
            "model",
            f"metrics {data[:8]!r}",
            resealed("model", partial(put, name="metrics.json", data=data)),
            "metrics.json",
        )
        for data in (
            b"",
            b"[]",
            b"{",
            b"\xff",
            b"[" * 10**5,
            b"{}" + b" " * 2**25,
            *map(swollen, (b"[]", b"{}", b"1e5")),
        )
    ),
    *(
        ("model", f"{file}: {what}", resealed("model", partial(header_edit, file=file, edit=edit)), file)
        for file in ("model.safetensors", "bloom.safetensors", "prior.safetensors")
        for what, edit in [
            ("a header of 2^64 bytes", lambda _: None),
            ("a header nested deeply", lambda _: b'{"a":' * 10**5),
            ("tensors that overlap", lambda h: each(h, data_offsets=[0, 4])),
            ("tensors before the file", lambda h: each(h, data_offsets=[-4, 0])),
            ("tensors beyond the file", lambda h: each(h, data_offsets=[2**62, 2**62 + 4])),
            ("tensors backwards", lambda h: each(h, data_offsets=[4, 0])),
            ("tensors larger than any", lambda h: each(h, shape=[2**62, 2**62])),
            ("tensors of nothing times much", lambda h: each(h, shape=[0, 2**62], data_offsets=[0, 0])),
            ("a type that is an escape sequence", lambda h: each(h, dtype="\x1b[2J\n")),
            ("names that are escape sequences", lambda h: {f"\x1b[2J\n{name}": part for name, part in h.items()}),
            ("no whole numbers", lambda h: each(h, data_offsets=[0.0, 1e308])),
            ("a description of 9 MB", lambda h: h | {"__metadata__": {"x": "y" * 9_000_000}}),
            (
                "300,000 tensors",
                lambda _: {f"{i:x}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for i in range(300_000)},
            ),
        ]
    ),
    *(
        ("plain-model", f"{name}={value}", set_model(name, value), "config.json")
        for name, value in (("seq_len", 10**6), ("seq_len", 10**15), ("num_hashes", 257))
    ),
    ("plain-model", "20,000 hash functions", resealed("model", many_hashes), "config.json"),
    *(
        ("model", f"weights: {what}", tensors_edit("model.safetensors", edit), "model.safetensors")
        for what, edit in [
            ("none", dict.clear),
            ("one more", lambda t: t.update(evil=torch.zeros(1))),
            ("one less", lambda t: t.pop("bias")),
            ("one renamed", lambda t: t.update({"bias\n2": t.pop("bias")})),
            ("another shape", lambda t: t.update(bias=t["bias"][:-1])),
            ("another rank", lambda t: t.update(bias=t["bias"][None])),
            ("no elements", lambda t: t.update(bias=t["bias"][:0])),
            ("doubles", lambda t: t.update(bias=t["bias"].double())),
            ("whole numbers", lambda t: t.update(bias=t["bias"].long())),
            ("truth values", lambda t: t.update(bias=t["bias"].bool())),
            ("bytes", lambda t: t.update(bias=t["bias"].to(torch.float8_e4m3fn))),
            ("complex", lambda t: t.update(bias=t["bias"].to(torch.complex64))),
            ("a thousand layers", lambda t: t.update({f"layers.{i}.x": torch.zeros(1) for i in range(1000)})),
        ]
    ),
    *(
        ("model", f"hashes: {what}", tensors_edit(file, edit), file)
        for file in ("bloom.safetensors", "target_bloom.safetensors")
        for what, edit in [
            ("none", dict.clear),
            ("one more", lambda t: t.update(evil=torch.zeros(1))),
            ("no order", lambda t: t.pop("order")),
            ("bucket too large", lambda t: t["table"].__setitem__((0, 0), t["starts"].shape[1] - 1)),
            ("bucket far too large", lambda t: t["table"].__setitem__((3, 1), 2**31 - 1)),
            ("bucket negative", lambda t: t["table"].__setitem__((5, 1), -1)),
            ("id too large", lambda t: t["order"].__setitem__((0, 0), SIZE)),
            ("id negative", lambda t: t["order"].__setitem__((1, 2), -(2**31))),
            ("not a permutation", lambda t: t["order"].__setitem__((0, 0), t["order"][0, 1])),
            ("order swapped", lambda t: t.update(order=t["order"].flip(0))),
            ("another hash", lambda t: t.update(table=t["table"].flip(0))),
            ("start too large", lambda t: t["starts"].__setitem__((0, -1), 2**62)),
            ("start negative", lambda t: t["starts"].__setitem__((1, 1), -5)),
            ("short starts", lambda t: t.update(starts=t["starts"][:, :1])),
            ("no starts", lambda t: t.update(starts=t["starts"][:, :0])),
            ("no ids", lambda t: t.update(table=t["table"][:0], order=t["order"][:, :0])),
            ("no hashes", lambda t: t.update(table=t["table"][:, :0], order=t["order"][:0], starts=t["starts"][:0])),
            ("one dimension", lambda t: t.update(table=t["table"].flatten())),
            ("floats", lambda t: t.update(table=t["table"].float())),
            ("long ids", lambda t: t.update(order=t["order"].long())),
        ]
    ),
    *(
        ("model", f"prior: {what}", tensors_edit("prior.safetensors", edit), "prior.safetensors")
        for what, edit in [
            ("none", dict.clear),
            ("one more", lambda t: t.update(evil=torch.zeros(1))),
            ("too few", lambda t: t.update(counts=t["counts"][:-1])),
            ("floats", lambda t: t.update(counts=t["counts"].float())),
            ("negative", lambda t: t["counts"].__setitem__(2, -2)),
            ("a weight that is no number", lambda t: t["scale"].__setitem__(0, torch.nan)),
            ("a weight too large", lambda t: t["scale"].__setitem__(0, 1e9)),
            ("temperature zero", lambda t: t["scale"].__setitem__(1, 0.0)),
            ("temperature without end", lambda t: t["scale"].__setitem__(1, torch.inf)),
            ("one scale", lambda t: t.update(scale=t["scale"][:1])),
        ]
    ),
    *(
        ("model", f"{file} of another model", resealed("model", partial(of_another, name=file)), says)
        for file, says in (("model.safetensors", "model.safetensors"), ("bloom.safetensors", "6 buckets"))
    ),
    (
        "model",
        "names of another model",
        columns_edit("model", "vocab.arrow", name=NAMES[:9], count=COUNTS[:9], by_name=None),
        "9 names",
    ),
    (
        "model",
        "targets of another model",
        columns_edit("model", "targets.arrow", name=NAMES[:9], count=COUNTS[:9], by_name=None),
        "9 names",
    ),
    *(
        (kind, f"{file}: {what}", columns_edit(kind, file, **columns), file)
        for kind, file in FILES
        if file in ("vocab.arrow", "targets.arrow")
        for what, columns in [
            ("by_name too large", {"by_name": np.where(ORDER == 3, SIZE, ORDER).astype(np.int32)}),
            ("by_name far too large", {"by_name": np.where(ORDER == 3, 2**31 - 1, ORDER).astype(np.int32)}),
            ("by_name negative", {"by_name": np.where(ORDER == 3, -1, ORDER).astype(np.int32)}),
            ("by_name twice", {"by_name": np.where(ORDER == 3, 4, ORDER).astype(np.int32)}),
            ("by_name text", {"by_name": NAMES}),
            ("by_name long", {"by_name": ORDER.astype(np.int64)}),
            ("by_name null", {"by_name": pa.array([None, *ORDER[1:].tolist()], pa.int32())}),
            ("names null", {"name": pa.array([None] * SIZE, TEXT)}),
            ("names coded", {"name": NAMES.combine_chunks().dictionary_encode()}),
            ("names bytes", {"name": NAMES.cast(pa.large_binary())}),
            *((f"names {what}", {"name": names}) for what, names in ODD.items()),
            *((f"names with {what}", {"name": names}) for what, names in BAD_TEXT.items()),
            ("names twice", {"name": pa.array(["x"] * SIZE, TEXT), "by_name": None}),
            ("no names", {"name": None}),
            ("counts negative", {"count": -COUNTS[::-1]}),
            ("counts rising", {"count": COUNTS[::-1]}),
            ("counts null", {"count": pa.array([None] * SIZE, pa.int64())}),
            ("counts floats", {"count": COUNTS.astype(float)}),
            ("nothing at all", {"name": pa.array([], TEXT), "count": pa.array([], pa.int64()), "by_name": None}),
        ]
    ),
    *(
        ("corpus", f"packed with {codec}", resealed("corpus", partial(compressed, codec=codec)), "vocab.arrow")
        for codec in ("zstd", "lz4")
    ),
    (
        "corpus",
        "a packed bomb",
        resealed("corpus", bomb),
        "vocab.arrow is not a sound Arrow file ('it holds a compressed",
    ),
    ("corpus", "100,000 batches", resealed("corpus", partial(batches, number=100_000, rows=1)), "10,000 batches"),
    (
        "corpus",
        "100,000 columns",
        columns_edit("corpus", "vocab.arrow", **dict.fromkeys(map(str, range(10**5)), COUNTS)),
        "bytes",
    ),
    ("corpus", "a description of 9 MB", resealed("corpus", partial(described, what={"x": "y" * 9_000_000})), "bytes"),
    *(
        ("text-model", f"{what}", edit, "vocab.arrow")
        for what, edit in [
            ("kind 3", columns_edit("model", "vocab.arrow", kind=np.full(8, 3, np.int8))),
            ("kind -1", columns_edit("model", "vocab.arrow", kind=np.full(8, -1, np.int8))),
            ("words that are bigrams", columns_edit("model", "vocab.arrow", kind=np.full(8, 2, np.int8))),
            ("bigrams that are words", columns_edit("model", "vocab.arrow", kind=np.full(8, 1, np.int8))),
            ("no kinds", columns_edit("model", "vocab.arrow", kind=None)),
            ("kinds of text", columns_edit("model", "vocab.arrow", kind=pa.array(["x"] * 8))),
            ("no normalisation", resealed("model", partial(described, what={}))),
            *(
                (
                    f"normalisation {told!r:.10}",
                    resealed("model", partial(described, what={"superbloom.text": told})),
                )
                for told in (b"\xff\x1b", b"", b"CASED", b"x" * 10**5)
            ),
            ("bigrams of three", text_names("a b c")),
            ("bigrams of spaces", text_names("a ")),
            ("bigrams of nothing", text_names(" ")),
        ]
    ),
    *(
        (f"{kind}-corpus", what, columns_edit("corpus", "sequences.arrow", **columns), "sequences.arrow")
        for kind, what, columns in [
            ("log", "a cut before the row", {"valid_from": np.full(80, -1, np.int32)}),
            ("log", "a cut behind the row", {"test_from": np.full(80, 4, np.int32)}),
            ("log", "a cut far behind", {"test_from": np.full(80, 2**31 - 1, np.int32)}),
            ("log", "cuts the wrong way round", {"test_from": np.full(80, 1, np.int32)}),
            ("log", "one cut", {"test_from": None}),
            ("log", "long cuts", {"test_from": np.full(80, 2)}),
            ("text", "sentences that begin late", {"sentences": pa.array([[1, 3]] * 60, LISTS)}),
            ("text", "sentences that fall", {"sentences": pa.array([[0, 3, 2]] * 60, LISTS)}),
            ("text", "sentences beyond the row", {"sentences": pa.array([[0, 6]] * 60, LISTS)}),
            ("text", "sentences before the row", {"sentences": pa.array([[0, -(2**31)]] * 60, LISTS)}),
            ("text", "no sentences", {"sentences": pa.array([[]] * 60, LISTS)}),
            ("text", "sentences null", {"sentences": pa.array([None] * 60, LISTS)}),
        ]
    ),
    ("corpus", "no schema", resealed("corpus", without_schema), "vocab.arrow"),
    ("corpus", "no batches", resealed("corpus", partial(batches, number=0)), "vocab.arrow has no rows"),
    ("corpus", "names again in a second batch", resealed("corpus", partial(batches, number=2)), "vocab.arrow"),
    ("corpus", "not Arrow", resealed("corpus", partial(put, name="vocab.arrow", data=b"name,count\n")), "vocab.arrow"),
    ("corpus", "no file at all", resealed("corpus", partial(put, name="vocab.arrow", data=b"")), "vocab.arrow"),
    (
        "corpus",
        "only a beginning",
        resealed("corpus", partial(put, name="vocab.arrow", data=b"ARROW1\0\0")),
        "vocab.arrow",
    ),
    (
        "corpus",
        "a length of 2 GB",
        resealed("corpus", partial(put, name="vocab.arrow", data=b"ARROW1\0\0\xff\xff\xff\xff\xff\xff\xff\x7f")),
        "vocab.arrow",
    ),
    (
        "corpus",
        "a row that ends early",
        resealed("corpus", shift_last_row),
        "sequences.arrow: rows must follow one another",
    ),
    *(
        ("corpus", f"sequences: {what}", columns_edit("corpus", "sequences.arrow", **columns), "sequences.arrow: ")
        for what, columns in [
            *((f"{name} too large", {name: pa.array([[SIZE, 0, 0], *IDS[1:]], LISTS)}) for name in ("ids", "targets")),
            *(
                (f"{name} far too large", {name: pa.array([[2**31 - 1, 0, 0], *IDS[1:]], LISTS)})
                for name in ("ids", "targets")
            ),
            *((f"{name} negative", {name: pa.array([[-1, 0, 0], *IDS[1:]], LISTS)}) for name in ("ids", "targets")),
            *(
                (f"{name} null inside", {name: pa.array([[None, 0, 0], *IDS[1:]], LISTS)})
                for name in ("ids", "targets")
            ),
            *((f"{name} null", {name: pa.array([None, *IDS[1:]], LISTS)}) for name in ("ids", "targets")),
            *((f"{name} long", {name: pa.array(IDS, pa.large_list(pa.int64()))}) for name in ("ids", "targets")),
            *((f"{name} short lists", {name: pa.array(IDS, pa.list_(pa.int32()))}) for name in ("ids", "targets")),
            *((f"no {name}", {name: None}) for name in ("ids", "targets", "split", "key")),
            ("fewer targets", {"targets": pa.array([[0], *IDS[1:]], LISTS)}),
            ("targets elsewhere", {"targets": pa.array([IDS[0] + [0], IDS[1][1:], *IDS[2:]], LISTS)}),
            ("split 3", {"split": pa.array([3, *TWO.splits[1:].tolist()], pa.int8())}),
            ("split -1", {"split": pa.array([-1, *TWO.splits[1:].tolist()], pa.int8())}),
            ("split null", {"split": pa.array([None, *TWO.splits[1:].tolist()], pa.int8())}),
            ("split long", {"split": TWO.splits.astype(np.int64)}),
            ("keys numbers", {"key": np.arange(len(TWO))}),
        ]
    ),
]


# Odd, but nothing that would do harm: the same must hold of them, whether they are refused or not.
HARMLESS: list[tuple[str, str, Edit, str | None]] = [
    *(
        ("corpus", f"another column {what}", columns_edit("corpus", "vocab.arrow", more=column), None)
        for what, column in ODD.items()
    ),
    *(
        ("plain-model", f"weights {value}", tensors_edit("model.safetensors", partial(filled, value=value)), None)
        for value in (torch.nan, torch.inf, 3e38)
    ),
    ("plain-model", "no name has a count", tensors_edit("prior.safetensors", lambda t: t["counts"].fill_(-1)), None),
    ("plain-model", "alpha of another", manifest_edit("model", lambda m: m["model"].update(buckets=9, alpha=99)), None),
    (
        "corpus",
        "info in disorder",
        manifest_edit("corpus", lambda m: m["info"].update(x=nested(800), y="\ud800")),
        None,
    ),
    ("corpus", "counts of others", manifest_edit("corpus", lambda m: m["counts"].update(rows=10**40, x="\x1b")), None),
    ("model", "another file", partial(put, name="more", data=b"x"), None),
    ("model", "a card elsewhere", lambda folder: replaced(folder, "README.md", elsewhere), None),
]
