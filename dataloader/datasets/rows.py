"""Frames and tables, row by row.

The ``__getitem__`` of a pandas frame and of an Arrow table gives a column, a series' goes by label. Here a
sample is a row: a dict of what its columns have, by their names. Numbers keep their column's type, so that a
batch has it too. The libraries are known by their names, and are imported by whoever has made the frame.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any

from dataloader.datasets.base import Dataset
from dataloader.datasets.indices import checked_position


def by_row(dataset: Any) -> Any:
    """Return ``dataset`` as one that gives rows, where it is a frame or a table; else itself.

    >>> by_row("abc")
    'abc'
    """
    adapter = _adapter_of(type(dataset))  # type: ignore[arg-type]
    return dataset if adapter is None else adapter(dataset)


@lru_cache(maxsize=256)
def _adapter_of(kind: type) -> Callable[[Any], Any] | None:
    names = ((base.__module__.partition(".")[0], base.__name__) for base in kind.__mro__)
    return next((_ADAPTERS[name] for name in names if name in _ADAPTERS), None)


class _Rows(Dataset[Any]):
    """The rows of ``table``."""

    def __init__(self, table: Any) -> None:
        self.table = table

    def __getitem__(self, index: int) -> Any:
        (row,) = self.__getitems__([index])
        return row

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        raise NotImplementedError

    def __len__(self) -> int:
        return len(self.table)


class _FrameRows(_Rows):
    """Of a pandas DataFrame."""

    def __getitems__(self, indices: Sequence[int]) -> list[dict[Any, Any]]:
        rows = self.table.iloc[list(indices)]
        if not rows.columns.is_unique:
            raise ValueError(f"columns {list(rows.columns)}: two have the same name: rename one")
        return _as_dicts(rows.columns, (column.array for _, column in rows.items()), len(indices))


class _SeriesRows(_Rows):
    """Of a pandas Series: its values by position."""

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        return list(self.table.iloc[list(indices)].array)


class _ArrowRows(_Rows):
    """Of an Arrow Table or RecordBatch."""

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        length = len(self.table)
        rows = self.table.take([checked_position(index, length) for index in indices])
        if len(set(rows.schema.names)) < len(rows.schema.names):
            raise ValueError(f"columns {rows.schema.names}: two have the same name: rename one")
        return _as_dicts(rows.schema.names, map(_arrow_values, rows.columns), len(indices))


def _arrow_values(column: Any) -> Iterable[Any]:
    """Return numbers as NumPy's, of the column's type; else what Arrow makes of them for Python."""
    kind = str(column.type)
    is_number = kind.startswith(("int", "uint", "float", "double", "halffloat"))
    values: Iterable[Any] = column.to_numpy() if is_number and not column.null_count else column.to_pylist()
    return values


def _as_dicts(names: Iterable[Any], columns: Iterable[Iterable[Any]], count: int) -> list[dict[Any, Any]]:
    rows: list[dict[Any, Any]] = [{} for _ in range(count)]
    for name, values in zip(names, columns, strict=True):
        for row, value in zip(rows, values, strict=True):
            row[name] = value
    return rows


_ADAPTERS: dict[tuple[str, str], Callable[[Any], Any]] = {
    ("pandas", "DataFrame"): _FrameRows,
    ("pandas", "Series"): _SeriesRows,
    ("pyarrow", "Table"): _ArrowRows,
    ("pyarrow", "RecordBatch"): _ArrowRows,
}
