"""The paper's tables and figures, made from run folders: our value with its interval, the paper's, the difference."""

from typing import TYPE_CHECKING

from worstclass.lazy import importer

__all__ = [
    "FIGURES",
    "FORMATS",
    "TABLES",
    "Cell",
    "PaperTable",
    "Row",
    "collect",
    "draw_figure",
    "make_table",
    "render",
]

if TYPE_CHECKING:
    from worstclass.reproduce.figures import draw_figure
    from worstclass.reproduce.formats import render
    from worstclass.reproduce.rows import Row, collect
    from worstclass.reproduce.specs import FIGURES, FORMATS, TABLES
    from worstclass.reproduce.tables import Cell, PaperTable, make_table
else:
    __getattr__ = importer(
        __name__,
        {
            "figures": "draw_figure",
            "formats": "render",
            "rows": "Row collect",
            "specs": "FIGURES FORMATS TABLES",
            "tables": "Cell PaperTable make_table",
        },
    )
