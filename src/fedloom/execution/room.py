"""Where the replies of a round are put together: a large fleet's of a large model could not all be in memory."""

from __future__ import annotations

import math
import mmap
import os
import tempfile
from pathlib import Path

import torch
from torch import Tensor

from fedloom.storage.files import guarded


class Room:
    """The first columns are in memory; what would exceed ``memory`` bytes is in files that have no name.

    The space on the disk is taken at once, so that a full disk is an error before any reply is lost, and is given back
    when the column is no longer used, also when the process is killed.
    """

    def __init__(self, folder: Path = Path(), memory: float = math.inf) -> None:
        self.folder, self.left = folder, memory
        self._maps: dict[int, mmap.mmap] = {}
        """The files of columns, by the place where these begin in memory."""

    def column(self, rows: int, like: Tensor) -> Tensor:
        """A column of so many rows, each like those of ``like``; what is in it is not defined."""
        shape, size = (rows, *like.shape[1:]), rows * like[:1].nbytes
        if size <= self.left:
            self.left -= size
            return like.new_empty(shape)
        safe = "The run is kept up to its last checkpoint."
        with guarded(self.folder, safe), tempfile.TemporaryFile(dir=self.folder) as file:
            pages = reserved(file.fileno(), size)
        column = torch.frombuffer(pages, dtype=like.dtype).view(shape)
        self._maps[column.data_ptr()] = pages
        return column

    def only(self, column: Tensor, rows: Tensor) -> Tensor:
        """These rows of a column, in ascending order; the column itself is not needed any more."""
        if column.data_ptr() not in self._maps:
            return column[rows]
        for to, at in enumerate(rows.tolist()):
            if to != at:
                column[to] = column[at]
                self.rest()
        return column[: len(rows)]

    def rest(self) -> None:
        """What has been read or written last is not needed for the moment."""
        if hasattr(mmap, "MADV_DONTNEED"):  # of a file that is shared this gives back memory and changes no byte
            for pages in self._maps.values():
                pages.madvise(mmap.MADV_DONTNEED)


def reserved(handle: int, size: int) -> mmap.mmap:
    """A file as memory; its space is taken at once: an error now, instead of a bus error at the first write."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(handle, 0, size)
    else:
        os.ftruncate(handle, size)
    return mmap.mmap(handle, size)
