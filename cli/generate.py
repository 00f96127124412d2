"""qtool generate"""

from __future__ import annotations

from pathlib import Path

import click
from qtool.cli import options, output, source_options
from qtool.cli.command import Command
from qtool.cli.records import record

from qtool.evaluation.options import GenerationOptions


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
    record("chosen", GenerationOptions),
    options.json_,
)
def command(
    file: Path,
    prompt: str,
    model: Path | None,
    tokenizer: Path | None,
    chosen: GenerationOptions,
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
        on_text=lambda text: None if output.is_json() else click.echo(text, nl=False),
        **vars(chosen),
    )
    if output.is_json():
        output.show_json(result)
        return
    click.echo()
    click.echo(str(result.summary), err=True)
