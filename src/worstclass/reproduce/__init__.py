"""The paper's tables and figures, made from run folders: our value with its interval, the paper's, the difference."""

from worstclass.reproduce.figures import FIGURES, draw_figure
from worstclass.reproduce.render import FORMATS, render
from worstclass.reproduce.rows import Row, collect
from worstclass.reproduce.tables import TABLES, Cell, PaperTable, make_table

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
