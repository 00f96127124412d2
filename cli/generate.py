"""qtool generate"""

from __future__ import annotations

from pathlib import Path

import click
from qtool.cli import options, output, source_options
from qtool.cli.command import Command
from qtool.cli.number_types import COUNT, Real


@click.command("generate", cls=Command)
@click.argument("file", type=source_options.ModelFile)
@click.argument("prompt")
@source_options.apply(
    click.option(
        "--model",
        type=source_options.ExistingPath,
        help="Folder of the float model, to count the tokens that it finds most likely, too.",
    ),
    click.option(
        "--tokenizer",
        type=source_options.ExistingPath,
        help="Folder with the tokenizer; by default FILE's.",
    ),
    click.option(
        "--tokens",
        default=64,
        show_default=True,
        type=COUNT,
        help="Most new tokens; a token that ends texts is the last.",
    ),
    click.option(
        "--temperature",
        default=0.0,
        show_default=True,
        type=Real(min=0),
        help="Divides the logits; 0 takes the most likely token.",
    ),
    click.option(
        "--top-k",
        default=0,
        show_default=True,
        type=click.IntRange(min=0),
        help="Number of tokens to choose from; 0 for all.",
    ),
    click.option(
        "--top-p",
        default=1.0,
        show_default=True,
        type=Real(min=0, max=1, min_open=True),
        help="Probability of the smallest set of tokens to choose from.",
    ),
    click.option(
        "--seed",
        default=0,
        show_default=True,
        type=click.IntRange(min=0),
        help="Of the random numbers.",
    ),
    click.option(
        "--threads",
        default=0,
        show_default=True,
        type=click.IntRange(min=0, max=1024),
        help="Threads of ONNX Runtime; 0 lets it choose.",
    ),
    options.json_,
)
def command(
    file: Path,
    prompt: str,
    model: Path | None,
    tokenizer: Path | None,
    tokens: int,
    temperature: float,
    top_k: int,
    top_p: float,
    seed: int,
    threads: int,
    as_json: bool,
) -> None:
    """Continue PROMPT with the ONNX FILE of a language model that has its KV cache as inputs.

    The text is printed as it is made, speed and agreement after it to standard error. The
    tokenizer lies next to FILE where `qtool quantize` wrote it.

    \b
    Example:
      qtool generate out/model.onnx "The scale of a tensor" --tokens 40
    """
    import qtool

    result = qtool.generate(
        file,
        prompt,
        model=model,
        tokenizer=tokenizer,
        tokens=tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        threads=threads,
        on_text=lambda text: None if as_json else click.echo(text, nl=False),
    )
    if as_json:
        output.show_json(result)
        return
    click.echo()
    click.echo(str(result.summary), err=True)
