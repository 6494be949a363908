"""Tables, figures and the page, all made from the outcomes that evaluated runs keep."""

from worstclass.report.answer import headline
from worstclass.report.groups import Group, group_results
from worstclass.report.page import write_report
from worstclass.report.results import Result, load_results
from worstclass.report.tables import rich_table

__all__ = ["Group", "Result", "group_results", "headline", "load_results", "rich_table", "write_report"]
