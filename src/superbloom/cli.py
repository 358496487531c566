"""The command line. Each command imports what it needs when it runs and calls one function.

Results go to standard output, progress and errors to standard error. A user's mistake is one line and exit
code 2. With --json, standard output carries one JSON document and nothing else.
"""

from __future__ import annotations

import inspect as introspection
import json
import os
import re
import reprlib
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import MISSING, asdict, fields
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from superbloom.config import PRESET_NAMES, ModelConfig, Settings, TrainConfig
from superbloom.errors import InputError, out_of_memory
from superbloom.runtime import main_process
from superbloom.runtime.addresses import check_imports, limit
from superbloom.version import __version__

LIMITS = Settings()

app = typer.Typer(
    help="A Transformer for catalogues of ids too large for a softmax: Wikipedia entities, products, words.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
prepare = typer.Typer(help="Turn your data into a corpus folder.", no_args_is_help=True)
app.add_typer(prepare, name="prepare")

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead.")]
Out = Annotated[Path, typer.Option("--out", help="Folder to write; an older one of the same kind is replaced.")]
MinCount = Annotated[int, typer.Option(help="Leave out names that occur less often.")]
ModelFolder = Annotated[Path, typer.Argument(metavar="MODEL", help="A model folder.")]
CorpusFolder = Annotated[Path, typer.Argument(metavar="CORPUS", help="A corpus folder, made by `prepare`.")]
Beam = Annotated[
    int | None,
    typer.Option(help="Buckets opened per hash in the first round. (default: 24 or more)"),
]
MaxRounds = Annotated[
    int | None, typer.Option(help="Stop after so many rounds, certified or not. (default: until certified)")
]
Precision = Annotated[str, typer.Option(help="How output weights are held: fp32, bf16 or int8.")]
ApiKey = Annotated[
    str | None, typer.Option(envvar="SUPERBLOOM_API_KEY", show_envvar=True, help="The key of the server.")
]
DEEPEST_TREE = 20  # spaces of indentation
WithPrior = Annotated[bool, typer.Option("--prior/--no-prior", help="Weigh in how frequent names are.")]


def main() -> None:
    """Run a command; a user's mistake or a failing disk ends in one line and exit code 2."""
    try:
        check_imports()
        app()
    except InputError as error:
        _fail(str(error))
    except OSError as error:
        place = f" ({error.filename})" if error.filename else ""
        _fail(f"{error.strerror or error}{place}; make room or choose another --out, and run the command again")
    except (MemoryError, RuntimeError, ImportError) as error:
        if "gloo" in str(error) or "NCCL" in str(error):
            _fail("another process of this training ended; see its message, and go on with --resume")
        if not out_of_memory(error):
            raise
        limited = "" if limit() is None else "raise ulimit -v, "
        _fail(f"out of memory; {limited}lower --batch-size, --logits-mb or --dim, or raise --alpha")


def _fail(message: str) -> None:
    where = "" if main_process() else f" in process {os.getpid()}"
    typer.echo(f"error{where}: {printable(' '.join(message.splitlines()))}", err=True)
    sys.exit(2)


def _options_of(*configs: type) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command an option for every documented field of these dataclasses; unset ones arrive as None."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        given = introspection.signature(command, eval_str=True)
        parameters = [p for p in given.parameters.values() if p.kind is not p.VAR_KEYWORD]
        for config in configs:
            hints = get_type_hints(config)
            for field in fields(config):
                if "help" not in field.metadata:
                    continue
                default = "" if field.default in (None, MISSING) else f" (default: {field.default})"
                option = typer.Option(help=field.metadata["help"] + default, rich_help_panel=config.__name__)
                kind: Any = Annotated[hints[field.name] | None, option]
                parameters.append(
                    introspection.Parameter(
                        field.name, introspection.Parameter.KEYWORD_ONLY, default=None, annotation=kind
                    )
                )
        command.__signature__ = given.replace(parameters=parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {p.name: p.annotation for p in parameters}
        return command

    return decorate


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"superbloom {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    _: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")] = False,
) -> None:
    try:
        Path.cwd()
    except FileNotFoundError:  # torch's libraries would end the process
        raise InputError("the current folder was removed; change to another one, and run the command again") from None


@app.command()
def demo(
    out: Annotated[Path, typer.Option("--out", help="Folder for model and corpus.")] = Path("superbloom-demo"),
    minutes: Annotated[float, typer.Option(help="How long to train.")] = 5.0,
) -> None:
    """Train on built-in Wikipedia links for five minutes, compare with yardsticks, answer queries."""
    from superbloom.commands.demo import demo as run

    run(out, minutes)


@prepare.command("wikipedia")
def prepare_wikipedia(
    dumps: Annotated[list[str], typer.Argument(help="pages-articles files: .xml, .bz2, .xz, .gz, .zst; - is stdin.")],
    out: Out,
    open_: Annotated[bool, typer.Option("--open", help="Keep links to pages that are not in the dump.")] = False,
    drop_repeats: Annotated[
        bool, typer.Option("--drop-repeats", help="Keep only the first link of a page to each other page.")
    ] = False,
    drop_disambiguations: Annotated[
        bool, typer.Option("--drop-disambiguations", help="Leave disambiguation pages out, and links to them.")
    ] = False,
    max_entities: Annotated[int | None, typer.Option(help="Keep only the most frequent link targets.")] = None,
    min_count: MinCount = 1,
    strict: Annotated[
        bool, typer.Option("--strict", help="Write nothing if a dump is damaged. (default: keep what precedes, exit 3)")
    ] = False,
    workers: Annotated[int | None, typer.Option(help="Processes to use. (default: one a core)", min=1)] = None,
    memory: Annotated[float, typer.Option(help="Memory for all processes, in GB.", min=1)] = 2.0,
    json_: Json = False,
) -> None:
    """The entity links of a Wikipedia dump (Sec. 3 of the paper). Run again after a kill, it goes on where it was."""
    from superbloom.prepare.wikipedia import prepare_wikipedia as run
    from superbloom.progress import counting

    sizes = [Path(dump).stat().st_size for dump in dumps if Path(dump).is_file()]
    try:
        with counting("reading", sum(sizes) if len(sizes) == len(dumps) else None, in_bytes=True) as progress:
            report = run(
                dumps,
                out,
                open_links=open_,
                drop_repeats=drop_repeats,
                drop_disambiguations=drop_disambiguations,
                min_count=min_count,
                max_names=max_entities,
                strict=strict,
                workers=workers,
                memory=int(memory * 1e9),
                notice=_notice,
                progress=progress,
            )
    except KeyboardInterrupt:
        _notice(f"stopped; the same command goes on where it was (or remove {q(out)}.parts)")
        raise typer.Exit(130) from None
    if json_:
        _print_json({"corpus": str(out), **asdict(report)})
    else:
        _print_rows(report.table())
        _next_after_prepare(out)
    if report.damage:
        raise typer.Exit(3)


@prepare.command("sequences")
def prepare_sequences(
    files: Annotated[list[str], typer.Argument(help="Text, one sequence a line; .gz .xz .zst .bz2 too; - is stdin.")],
    out: Out,
    sep: Annotated[str, typer.Option(help="What stands between two names: ' ', ',' … (default: a tab)")] = "\t",
    keyed: Annotated[
        bool, typer.Option("--keyed", help="The first field names the row (a user, a page); it is no element of it.")
    ] = False,
    max_names: Annotated[int | None, typer.Option(help="Keep only the most frequent names.")] = None,
    min_count: MinCount = 1,
    json_: Json = False,
) -> None:
    """Sequences of names from text files."""
    from superbloom.prepare.sequences import prepare_sequences as run
    from superbloom.storage import only_writer

    with only_writer(out, "corpus"):
        _finish_prepare(run(files, sep=sep, keyed=keyed, min_count=min_count, max_names=max_names), out, json_)


@prepare.command("interactions")
def prepare_interactions(
    files: Annotated[
        list[str],
        typer.Argument(help="CSV, TSV, Parquet, .inter or lines, packed or not; files, folders or s3://…; - is stdin."),
    ],
    out: Out,
    user: Annotated[str, typer.Option(help="Column of users; its number, from 0, if there is no header.")] = "user_id",
    item: Annotated[str, typer.Option(help="Column of items.")] = "item_id",
    time: Annotated[str | None, typer.Option(help="Column of times. (default: events lie in order)")] = None,
    min_item_count: Annotated[int, typer.Option(help="Leave out items with fewer events.")] = 5,
    min_user_count: Annotated[int, typer.Option(help="Leave out users with fewer events left.")] = 2,
    max_names: Annotated[int | None, typer.Option(help="Keep only the most frequent items.")] = None,
    split: Annotated[
        str,
        typer.Option(
            help="What is held out. last: the end of each row; time: the last 10 % of events; user: some rows."
        ),
    ] = "last",
    drop_repeats: Annotated[
        bool, typer.Option("--drop-repeats", help="Keep only the first event of a user with each item.")
    ] = False,
    engine: Annotated[str, typer.Option(help="duckdb, or spark for logs beyond one machine.")] = "duckdb",
    memory: Annotated[float, typer.Option(help="Memory to use, in GB.")] = 2.0,
    format_: Annotated[
        str, typer.Option("--format", help="auto, table, or lines: a user and items in order on each.")
    ] = "auto",
    encoding: Annotated[str, typer.Option(help="Of text: utf-8, latin-1 …")] = "utf-8",
    json_: Json = False,
) -> None:
    """An interaction log: one row a user, items in the order of events (docs/interactions.md)."""
    from superbloom.prepare.interactions import prepare_interactions as run
    from superbloom.storage import only_writer

    with only_writer(out, "corpus"):
        corpus = run(
            files,
            user=user,
            item=item,
            time=time,
            min_item_count=min_item_count,
            min_user_count=min_user_count,
            max_names=max_names,
            split=split,
            drop_repeats=drop_repeats,
            engine=engine,
            memory=memory,
            format=format_,
            encoding=encoding,
            scratch=out.resolve().parent,
        )
        _finish_prepare(corpus, out, json_)


@prepare.command("text")
def prepare_text(
    files: Annotated[
        list[str],
        typer.Argument(
            help="Text with blank lines or <doc> between documents, or a MediaWiki dump; packed or not; files or "
            "folders; - is stdin."
        ),
    ],
    out: Out,
    wordpieces: Annotated[
        Path | None, typer.Option(help="The vocab.txt of a BERT model. (default: train 30,000 word pieces)")
    ] = None,
    vocab_size: Annotated[
        int, typer.Option(help="Word pieces, and the most frequent words and bigrams, up to so many in all.", min=1)
    ] = 1_000_000,
    min_count: Annotated[int, typer.Option(help="Add no word or bigram that occurs less often.", min=1)] = 5,
    cased: Annotated[bool, typer.Option("--cased", help="Keep upper case and accents.")] = False,
    errors: Annotated[
        str, typer.Option(help="Bytes that are not UTF-8: strict refuses them, replace goes on.")
    ] = "strict",
    workers: Annotated[int | None, typer.Option(help="Processes to use. (default: one a core)", min=1)] = None,
    memory: Annotated[float, typer.Option(help="Memory for all processes, in GB.", min=1)] = 2.0,
    json_: Json = False,
) -> None:
    """Natural language as word pieces, words and bigrams (Sec. 4 of the paper; docs/text.md)."""
    from superbloom.prepare.text import prepare_text as run
    from superbloom.progress import counting

    report = run(
        files,
        out,
        wordpieces=wordpieces,
        vocab_size=vocab_size,
        min_count=min_count,
        cased=cased,
        errors=errors,
        workers=workers,
        memory=int(memory * 1e9),
        notice=_notice,
        watch=counting,
    )
    if json_:
        _print_json({"corpus": str(out), **asdict(report)})
    else:
        _print_rows(report.table())
        _next_after_prepare(out, "--preset text ", minutes=15)


@app.command()
@_options_of(ModelConfig, TrainConfig)
def train(
    corpus: CorpusFolder,
    out: Out,
    preset: Annotated[str | None, typer.Option(help=f"Start from one of {', '.join(PRESET_NAMES)}.")] = None,
    from_model: Annotated[
        Path | None, typer.Option(help="Begin with this model; names it does not know are added to it.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run of the same --out, if there is one.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Start anew over an interrupted run.")] = False,
    json_: Json = False,
    **options: Any,
) -> None:
    """Train a model, for five minutes unless told otherwise; checkpoints and log are kept beside it, in OUT.run."""
    from superbloom.commands.console import command
    from superbloom.commands.run import train as run

    given = {name: value for name, value in options.items() if value is not None}
    result = run(corpus, out, preset, resume, overwrite, given, from_model)
    if not main_process():
        return
    if json_:
        _print_json(result)
    elif result["interrupted"]:
        typer.echo(f"stopped at step {result['steps']:,}; the model so far is in {out}. Go on with:")
        typer.echo(f"  {command()} train {q(corpus)} --out {q(out)} --resume")
    else:
        typer.echo(
            f"{result['steps']:,} steps in {result['seconds'] / 60:.1f} minutes; the model is in {out}, "
            f"with the weights of step {result['taken']:,}. Next:"
        )
        ask = {
            "text": f'predict {q(out)} --text "… [MASK] …"',
            "interactions": f"recommend {q(out)} {q(corpus)} --user USER",
            "sequences": f'predict {q(out)} NAME… "[MASK]"',
        }
        typer.echo(f"  {command()} evaluate {q(out)} {q(corpus)}\n  {command()} {ask[result['learnt from']]}")


@app.command()
def evaluate(
    model: ModelFolder,
    corpus: CorpusFolder,
    split: Annotated[str, typer.Option(help="train, valid or test.")] = "test",
    beam: Beam = None,
    max_rounds: MaxRounds = None,
    rows: Annotated[int | None, typer.Option(help="Use only so many rows of the split.", min=1)] = None,
    draws: Annotated[
        int | None, typer.Option(help="Hidden elements in all, several of a row if need be. (default: one each)", min=1)
    ] = None,
    seed: Annotated[int, typer.Option(help="Which element of each row is hidden.")] = 0,
    precision: Precision = "fp32",
    prior: WithPrior = True,
    yardsticks: Annotated[bool, typer.Option(help="Compare with popularity and co-occurrence.")] = True,
    filter_seen: Annotated[
        bool, typer.Option("--filter-seen", help="Answer with nothing that stands before, as `recommend` does.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for metrics.json and the plot by frequency.")
    ] = None,
    json_: Json = False,
) -> None:
    """rec@1/10/20 on held-out rows (Sec. 3.1), beside popularity and co-occurrence."""
    from superbloom.commands.run import evaluate as run

    figures = run(
        model,
        corpus,
        out,
        precision=precision,
        prior=prior,
        split=split,
        rows=rows,
        draws=draws,
        beam=beam,
        max_rounds=max_rounds,
        seed=seed,
        yardsticks=yardsticks,
        filter_seen=filter_seen,
    )
    if json_:
        _print_json(figures)
        return
    from rich.console import Console

    from superbloom.evaluate import recall_table

    console = Console()
    console.print(recall_table(figures))
    console.print(
        f"NDCG@10 {figures['ndcg']['10']:.3f}, MRR@10 {figures['mrr']['10']:.3f}; "
        f"token rec@1 {figures['token_recall_at_1']['value']:.3f}; {figures['certified']:.1%} of the answers certified"
    )
    if out is not None:
        console.print(f"wrote {out / 'metrics.json'} and {out / 'deciles.png'}", markup=False)


@app.command()
def predict(
    model: Annotated[
        str | None, typer.Argument(metavar="MODEL", help="A model folder; left out with --server.", show_default=False)
    ] = None,
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME…", help="The context; [MASK] is what to predict, put at the end if left out."),
    ] = None,
    text: Annotated[
        str | None, typer.Option(help="Instead of names, of a model of text: a sentence with one [MASK] or more.")
    ] = None,
    k: Annotated[int, typer.Option("-k", help="How many names.")] = 10,
    beam: Beam = None,
    max_rounds: MaxRounds = None,
    combine: Annotated[
        str, typer.Option(help="How hashes are combined: sum, min or max of log-probabilities, or weights: 0.7,0.3.")
    ] = "sum",
    exclude: Annotated[list[str] | None, typer.Option(help="A name that may not be answered; may be repeated.")] = None,
    exclude_context: Annotated[
        bool, typer.Option("--exclude-context", help="Do not answer with names of the context.")
    ] = False,
    allow: Annotated[
        list[str] | None, typer.Option(help="A name that may be answered, and no other; may be repeated.")
    ] = None,
    allow_file: Annotated[
        Path | None, typer.Option(help="A text file, one name a line: answer with none but these.")
    ] = None,
    min_score: Annotated[float | None, typer.Option(help="Answer with no name that scores less.")] = None,
    precision: Precision = "fp32",
    prior: WithPrior = True,
    server: Annotated[str | None, typer.Option(help="Ask the server at this address, instead of a folder.")] = None,
    api_key: ApiKey = None,
    json_: Json = False,
) -> None:
    """The most likely names for each [MASK] of a context, with the certificate."""
    if model is None and server is None:
        raise InputError("give a model folder, or --server with the address of one that `superbloom serve` made")
    if server is not None:
        names = [*([] if model is None else [model]), *(names or [])]
    if (not names) == (text is None):
        raise InputError("give the names of a context, or a --text with [MASK], and not both")
    context = names or text or ""
    options: dict[str, Any] = {
        "exclude_context": exclude_context,
        "allow_file": allow_file,
        "beam": beam,
        "max_rounds": max_rounds,
        "combine": combine,
        "exclude": exclude or [],
        "allow": allow or [],
        "min_score": min_score,
    }
    with _warnings_as_lines():
        if server is not None:
            from superbloom.commands.ask import ask_server

            if precision != "fp32" or not prior:
                raise InputError("--precision and --prior are the server's to choose; leave them out with --server")
            found = ask_server(server, api_key, context, k, **options)
        else:
            from superbloom.commands.run import predict as run

            found = run(Path(str(model)), context, k, precision=precision, prior=prior, **options)
    if json_:
        _print_json({"context": context, "predictions": [[asdict(p) for p in predictions] for predictions in found]})
        return
    for number, predictions in enumerate(found, 1):
        if len(found) > 1:
            typer.echo(f"[MASK] {number}")
        for rank, prediction in enumerate(predictions, 1):
            typer.echo(f"{rank:4d}  {prediction.score:8.3f}  {_share(prediction)}  {printable(prediction.name)}")
        typer.echo(f"      ({_proof(predictions)})")


def _share(prediction: Any) -> str:
    """The probability, or what it is at least and at most where not all names were scored."""
    if prediction.at_least > 0.995 * prediction.probability:
        return f"{prediction.probability:6.1%}"
    return f"{100 * prediction.at_least:5.1f}–{prediction.probability:.1%}"


def _proof(predictions: list[Any]) -> str:
    if not predictions:
        return "no name is left: all are excluded, or score less than --min-score"
    return "certified: no other name scores higher" if predictions[0].certified else "not certified: search cut short"


@app.command()
def serve(
    model: ModelFolder,
    host: Annotated[str, typer.Option(help="Where to listen; others than this machine need a key.")] = LIMITS.host,
    port: Annotated[int, typer.Option(help="0 is any that is free.", min=0, max=65535)] = LIMITS.port,
    api_key: ApiKey = None,
    precision: Precision = "fp32",
    prior: WithPrior = True,
    report: Annotated[
        Path | None, typer.Option(help="Folder that `evaluate --out` wrote: for the page's report.")
    ] = None,
    copy: Annotated[
        bool, typer.Option("--copy", help="Read all files into memory, so that they may be changed while it serves.")
    ] = False,
    browser: Annotated[bool, typer.Option(help="Open the page once the model is loaded.")] = True,
    max_k: Annotated[int, typer.Option(help="Names of one answer, at most.", min=1)] = LIMITS.max_k,
    max_context: Annotated[
        int | None, typer.Option(help="Names of one context, at most. (default: what the model reads)", min=1)
    ] = None,
    max_queries: Annotated[int, typer.Option(help="Contexts of one request, at most.", min=1)] = LIMITS.max_queries,
    max_filter: Annotated[
        int, typer.Option(help="Names that a query excludes or allows, at most.", min=1)
    ] = LIMITS.max_filter,
    max_body: Annotated[int, typer.Option(help="Bytes of one request, at most.", min=1)] = LIMITS.max_body,
    seconds: Annotated[float, typer.Option(help="Seconds within which a request is answered, or refused.")] = (
        LIMITS.seconds
    ),
    batch: Annotated[int, typer.Option(help="Contexts computed together, at most.", min=1)] = LIMITS.batch,
    queue: Annotated[int, typer.Option(help="Contexts that may wait; beyond, 503.", min=1)] = LIMITS.queue,
    max_connections: Annotated[int, typer.Option(help="Open connections, at most.", min=1)] = LIMITS.max_connections,
    max_connections_per_address: Annotated[
        int, typer.Option(help="Open connections of one address, at most; a proxy is one address.", min=1)
    ] = LIMITS.max_connections_per_address,
    cors: Annotated[
        list[str] | None, typer.Option(help="Origin of another site whose pages may ask; may be repeated.")
    ] = None,
) -> None:
    """A model over HTTP, and a page to play with it. Ctrl-C or SIGTERM answers what came, then ends; SIGHUP reloads."""
    limits: dict[str, Any] = {
        "max_k": max_k,
        "max_context": max_context,
        "max_queries": max_queries,
        "max_filter": max_filter,
        "max_body": max_body,
        "seconds": seconds,
        "batch": batch,
        "queue": queue,
        "max_connections": max_connections,
        "max_connections_per_address": max_connections_per_address,
    }
    settings = Settings(host=host, port=port, api_key=api_key, cors=tuple(cors or ()), **limits)
    with _stopped_by_sigterm():
        try:
            from superbloom.serve.server import serve as run
        except ModuleNotFoundError as error:
            if (error.name or "").startswith("superbloom"):
                raise
            raise InputError(f"{error.name} is not installed; pip install 'superbloom[serve]'") from None

        options: dict[str, Any] = {"precision": precision, "prior": prior, "copy": copy}
        run(model, settings, **options, report=report, browser=browser, notice=_notice)


@contextmanager
def _stopped_by_sigterm() -> Iterator[None]:
    """Until a server handles signals itself, SIGTERM ends it with 0: nothing was asked yet, so nothing is lost."""
    before = signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@app.command()
def recommend(
    model: ModelFolder,
    corpus: CorpusFolder,
    user: Annotated[list[str] | None, typer.Option(help="A user; may be repeated. (default: all)")] = None,
    users_file: Annotated[Path | None, typer.Option(help="A text file, one user a line.")] = None,
    k: Annotated[int, typer.Option("-k", help="How many items for each.")] = 10,
    filter_seen: Annotated[bool, typer.Option(help="Leave out what a user has had.")] = True,
    strict: Annotated[
        bool, typer.Option("--strict", help="Refuse unknown users and items. (default: leave them out)")
    ] = False,
    titles: Annotated[Path | None, typer.Option(help="Lines of an item, a tab and a title, to show beside it.")] = None,
    out: Annotated[Path | None, typer.Option("--out", help="A .csv or .parquet file to write.")] = None,
    safe_csv: Annotated[
        bool, typer.Option("--safe-csv", help="Mark text that a spreadsheet would run as a formula with an apostrophe.")
    ] = False,
    json_: Json = False,
) -> None:
    """The best next items of users, from all they had: user, item, score, rank, certified."""

    from superbloom.commands.run import recommend as run

    with _warnings_as_lines():
        found = run(
            model,
            corpus,
            user or [],
            users_file,
            out,
            titles,
            safe_csv=safe_csv,
            k=k,
            filter_seen=filter_seen,
            strict=strict,
        )
    rows = list(zip(*found.values(), strict=True))
    if json_:
        _print_json([dict(zip(found, row, strict=True)) for row in rows])
    elif out is not None:
        typer.echo(f"{len(rows):,} recommendations for {len(set(found['user'])):,} users are in {out}")
    else:
        for who, item, score, rank, certified, *title in rows:
            shown = "\t".join(map(printable, [item, *title])) + ("" if certified else "  (not certified)")
            typer.echo(f"{printable(str(who))}\t{rank}\t{score:.3f}\t{shown}")


@app.command()
def extend(
    model: ModelFolder,
    names: Annotated[Path, typer.Argument(metavar="NAMES", help="A text file, one new name a line; - is stdin.")],
    out: Out,
    like: Annotated[
        Path | None,
        typer.Option(help="Lines of a new name, a tab, and known names it is like, with tabs between them."),
    ] = None,
    reserve: Annotated[float, typer.Option(help="How much fuller a bucket may become, as a share of alpha.")] = 0.25,
    json_: Json = False,
) -> None:
    """Add names to a model without training: old digests stay, each new name gets one that is its own."""
    from superbloom.commands.run import extend as run

    result = run(model, names, out, like, reserve)
    if json_:
        _print_json(result)
        return
    from superbloom.commands.console import command

    again = f", {result['known before']:,} were known" if result["known before"] else ""
    typer.echo(
        f"{result['new']:,} new names{again}; {result['names']:,} in all, room for {result['room left']:,} more."
    )
    typer.echo(f"The model is in {out}; train it on a corpus that has them:")
    typer.echo(f"  {command()} train CORPUS --from-model {q(out)} --out {q(f'{out}-trained')}")


@app.command()
def inspect(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A corpus or model folder.")],
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME…]", help="Names to look up in it.")] = None,
    json_: Json = False,
) -> None:
    """What is in a corpus or model folder; for names: id, count, digest and who shares their buckets."""
    from superbloom.commands.run import inspect as run

    found = run(folder, names or [])
    if json_:
        _print_json(found)
    else:
        _print_tree(found)


@app.command("plan")
@_options_of(ModelConfig, TrainConfig)
def plan_(
    ids: Annotated[int, typer.Option(help="How many names the catalogue has.")],
    memory: Annotated[
        str | None, typer.Option(help="Memory to use: 16GB, 16GiB or bytes. (default: what this machine has)")
    ] = None,
    preset: Annotated[str | None, typer.Option(help=f"Start from one of {', '.join(PRESET_NAMES)}.")] = None,
    json_: Json = False,
    **options: Any,
) -> None:
    """Choose alpha, m and d for a catalogue and a memory; parameters, memory and time they take (docs/sizes.md)."""
    from superbloom.api import train_config
    from superbloom.commands.plan import in_bytes, measure, plan, table
    from superbloom.config import preset_options, split_options

    shape, training = ({}, {}) if preset is None else preset_options(preset)
    given = {name: value for name, value in options.items() if value is not None}
    more_shape, more_training = split_options(given)
    room = None if memory is None else in_bytes(memory)
    found = plan(ids, room, shape | more_shape, train_config(**training | more_training))
    rates = measure()
    if json_:
        _print_json(found.document(rates))
        return
    from rich.console import Console

    from superbloom.commands.console import command

    Console().print(table(found, rates))
    chosen = {name: getattr(found.config, name) for name in ("alpha", "num_hashes", "dim", "heads", "ffn_dim")}
    words = [f"--preset {q(preset)}"] if preset is not None else []
    for name, value in (chosen | given).items():
        flag = name.replace("_", "-")
        words.append(f"--{'' if value else 'no-'}{flag}" if isinstance(value, bool) else f"--{flag} {q(str(value))}")
    typer.echo(f"Next:\n  {command()} train CORPUS --out MODEL {' '.join(words)}")
    typer.echo(f"  {command()} serve MODEL --precision int8")


@app.command()
def reproduce(
    corpus: CorpusFolder,
    out: Annotated[Path, typer.Option("--out", help="Folder for the report; an earlier call there is gone on with.")],
    only: Annotated[
        list[str] | None,
        typer.Option(
            help="Some parts: table1 to table7, figure3, costs, examples, sensitivity. (default: all the corpus allows)"
        ),
    ] = None,
    budget: Annotated[str | None, typer.Option(help="Time for all of it: 3h, 1h30m, 45m. (default: 3h)")] = None,
    seeds: Annotated[int, typer.Option(help="Train Tables 2, 3 and 5 with so many seeds.", min=1, max=100)] = 1,
    json_: Json = False,
) -> None:
    """The paper's tables and figures on your corpus, in the time you have, beside the paper's numbers."""
    from superbloom.commands.console import command
    from superbloom.reproduce.command import reproduce as run

    found = run(corpus, out, only=only or (), budget=budget, seeds=seeds, notice=_notice)
    if json_:
        _print_json(found)
    elif found["done"] < found["cells"]:
        typer.echo(f"{found['done']} of {found['cells']} models; the report so far is {found['report']}. Go on with:")
        parts = "".join(f" --only {q(part)}" for part in only or ()) + (f" --seeds {seeds}" if seeds > 1 else "")
        typer.echo(f"  {command()} reproduce {q(corpus)} --out {q(out)}{parts}")
    else:
        typer.echo(f"the report is {found['report']}")


def _finish_prepare(corpus: Any, out: Path, json_: bool) -> None:
    corpus.save(out)
    counts, dropped = corpus.counts(), corpus.info.get("dropped", {})
    if json_:
        _print_json({"corpus": str(out), "counts": counts} | ({"dropped": dropped} if dropped else {}))
    else:
        _print_rows([(f"{value:,}", f"events {reason}: left out") for reason, value in dropped.items()])
        _print_rows([(f"{value:,}", name) for name, value in counts.items()])
        _next_after_prepare(out, "--preset sequence " if corpus.is_ordered else "")


def _print_rows(rows: list[tuple[str, str]]) -> None:
    for value, name in rows:
        typer.echo(f"{value:>13}  {name}")


def _next_after_prepare(out: Path, options: str = "", minutes: int = 5) -> None:
    from superbloom.commands.console import command

    next_ = f"{command()} train {q(out)} --out {q(f'{out}-model')} {options}--minutes {minutes}"
    typer.echo(f"The corpus is in {out}. Next:\n  {next_}")


@contextmanager
def _warnings_as_lines() -> Iterator[None]:
    """What is left out with a warning in Python is a line here."""
    import warnings

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        yield
    for warning in caught:
        _notice(str(warning.message))


def _notice(line: str) -> None:
    typer.echo("\n".join(map(printable, line.split("\n"))), err=True)


def _print_json(document: Any) -> None:
    text = json.dumps(document, ensure_ascii=False, indent=2)
    text = re.sub("[\x7f-\x9f]", lambda found: f"\\u{ord(found[0]):04x}", text)  # some terminals obey these, too
    typer.echo(text.encode(errors="backslashreplace"))


def _print_tree(found: dict[str, Any], indent: str = "") -> None:
    """Names and values of a manifest, which may be anything that JSON can be."""
    for name, value in found.items():
        told = f"{indent}{printable(name)}"
        if isinstance(value, dict) and len(indent) < DEEPEST_TREE:
            typer.echo(told)
            _print_tree(value, indent + "  ")
        elif isinstance(value, list):
            typer.echo(f"{told}: {', '.join(printable(_short(item)) for item in value)}")
        else:
            shown = f"{value:,}" if type(value) is int else printable(_short(value))
            typer.echo(f"{told}: {shown}")


def _short(value: Any) -> str:
    return reprlib.repr(value) if isinstance(value, dict | list) else str(value)


def q(path: Path | str) -> str:
    """A path as one can paste it into a shell."""
    return shlex.quote(str(path))


def printable(name: str) -> str:
    """A name as one can show it in a terminal: control characters are spelled out.

    >>> printable("two\\nlines"), printable("Malmö")
    ('two\\\\nlines', 'Malmö')
    """
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in name)
