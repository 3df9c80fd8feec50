"""Replies on the disk: a server of a large fleet and a large model could not hold those of a round in memory."""

from __future__ import annotations

import mmap
import os
import tempfile
from pathlib import Path

import torch
from torch import Tensor

from fedloom.execution.room import Room
from fedloom.storage.files import guarded


class Spool(Room):
    """The first columns are in memory; what would exceed ``memory`` bytes is in files that have no name.

    The space on the disk is taken at once, so that a full disk is an error before any reply is lost, and is given back
    when the column is no longer used, also when the process is killed.
    """

    def __init__(self, folder: Path, memory: int) -> None:
        self.folder, self.left = folder, memory
        self._maps: dict[int, mmap.mmap] = {}
        """The files of columns, by the place where these begin in memory."""

    def column(self, rows: int, like: Tensor) -> Tensor:
        shape = (rows, *like.shape[1:])
        size = rows * like[:1].nbytes
        if size <= self.left:
            self.left -= size
            return super().column(rows, like)
        safe = "The run is kept up to its last checkpoint."
        with guarded(self.folder, safe), tempfile.TemporaryFile(dir=self.folder) as file:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)
            else:
                file.truncate(size)
            pages = mmap.mmap(file.fileno(), size)
        column = torch.frombuffer(pages, dtype=like.dtype).view(shape)
        self._maps[column.data_ptr()] = pages
        return column

    def only(self, column: Tensor, rows: Tensor) -> Tensor:
        if column.data_ptr() not in self._maps:
            return super().only(column, rows)
        for to, at in enumerate(rows.tolist()):
            if to != at:
                column[to] = column[at]
                self.rest()
        return column[: len(rows)]

    def rest(self) -> None:
        if hasattr(mmap, "MADV_DONTNEED"):  # of a file that is shared this gives back memory and changes no byte
            for pages in self._maps.values():
                pages.madvise(mmap.MADV_DONTNEED)
