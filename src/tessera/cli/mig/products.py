"""`tessera mig products`: the cards whose geometry is known."""

from typing import Any

import click

from tessera.cli.common import completing
from tessera.cli.common.help import Command
from tessera.cli.common.output import Output, Style, headed, no_headers_option, output_option
from tessera.core.mig.geometry import PRODUCTS, Product, product_named

_GIB = 1024  # MiB


@click.command("products", cls=Command)
@click.argument(
    "names", nargs=-1, metavar="[PRODUCT]...", shell_complete=completing.names(completing.product_names)
)
@output_option("table", "wide", "name")
@no_headers_option
def command(names: tuple[str, ...], output: Output, no_headers: bool) -> None:
    """List the known cards and their profiles.

    The names are those that --product takes. `-o wide` adds the label of their nodes, and for each profile how many of it one
    card can hold.

    \b
    Examples:
      tessera mig products
      tessera mig products H200 -o wide
    """
    products = [product_named(name) for name in names] or PRODUCTS

    def drawn(style: Style) -> list[str]:
        if output.form == "name":
            return [product.typed_name for product in products]
        wide = output.form == "wide"
        rows = [("PRODUCT", "MEMORY", "SLICES", *(("LABEL",) if wide else ()), "PROFILES")]
        for product in products:
            memory, slices = f"{product.memory_mib // _GIB} GB", str(product.memory_slices)
            label = (product.label,) if wide else ()
            profiles = [
                f"{one.profile}{f'×{one.most}' if wide else ''}{also}" for one, also in product.listed
            ]
            rows.append((product.typed_name, memory, slices, *label, " ".join(profiles)))
        return headed(rows, style, headers=not no_headers)

    output.show(lambda: [_document(product) for product in products], drawn)


def _document(product: Product) -> dict[str, Any]:
    return {
        "name": product.typed_name,
        "product": product.name,
        "label": product.label,
        "simulated": product.simulated,
        "memoryMiB": product.memory_mib,
        "computeSlices": product.compute_slices,
        "memorySlices": product.memory_slices,
        "profiles": [
            {
                "name": str(shape.profile),
                "memorySlices": shape.size,
                "most": shape.most,
                "starts": shape.starts,
                "memoryMiB": shape.memory_mib,
            }
            for shape in product.shapes
        ],
    }
