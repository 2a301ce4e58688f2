"""Plants bugs in traces: in how a message's files are written, and in which lines a reader believes."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from checkpointing import trace, traced_files
from checkpointing.handles import FileHandle, KeyedFile
from checkpointing.messages import FileChanges
from checkpointing.trace import TraceEntry, UnreadableTraceError
from checkpointing.traced_files import FilesPutBack, FilesTakenOut
from spec.mutants.judges import TRACES
from spec.mutants.planting import Patch, mutant

# ------------------------------------------------------------------ reading back


@mutant("traces-come-back", TRACES)
def a_run_of_numbers_is_one_too_long(patch: Patch) -> None:
    real = traced_files._run

    def run(numbers: list[int | None], at: int, first: int) -> int:
        return min(real(numbers, at, first) + 1, len(numbers) - at)

    patch.put(traced_files, "_run", run)


@mutant("traces-come-back", TRACES)
def files_that_leave_a_table_are_not_put_back(patch: Patch) -> None:
    real = traced_files._changes

    def changes(said: FileChanges | None, change: Any) -> FileChanges | None:  # noqa: ANN401 - as it is there
        made = real(said, change)
        return None if made is None else replace(made, gone=())

    patch.put(traced_files, "_changes", changes)


@mutant("traces-come-back", TRACES)
def dead_numbers_are_kept_for_objects_that_come_after(patch: Patch) -> None:
    real = FilesTakenOut._forget

    def forget(self: FilesTakenOut) -> None:
        numbers = dict(self._numbers)
        real(self)
        self._numbers = numbers | self._numbers

    patch.put(FilesTakenOut, "_forget", forget)


# ------------------------------------------------------------------ size


@mutant("traces-stay-small", TRACES)
def each_line_begins_anew(patch: Patch) -> None:
    real = FilesTakenOut.take_out

    def take_out(self: FilesTakenOut, body: Any) -> Any:  # noqa: ANN401 - any message
        self._lists, self._numbers = {}, {}
        return real(self, body)

    patch.put(FilesTakenOut, "take_out", take_out)


@mutant("traces-stay-small", TRACES)
def only_the_first_file_of_a_list_is_numbered(patch: Patch) -> None:
    real = FilesTakenOut._number

    def number(self: FilesTakenOut, files: Sequence[FileHandle | KeyedFile], first: int) -> None:
        real(self, files[:1], first)

    patch.put(FilesTakenOut, "_number", number)


@mutant("traces-stay-small", TRACES)
def every_list_counts_as_alive(patch: Patch) -> None:
    real = FilesTakenOut._forget

    def forget(self: FilesTakenOut) -> None:
        for known in self._lists.values():
            known.named = self._entries
        real(self)

    patch.put(FilesTakenOut, "_forget", forget)


@mutant("traces-stay-small", TRACES)
def a_table_is_not_known_by_the_files_of_its_state(patch: Patch) -> None:
    real = FilesTakenOut._number

    def number(self: FilesTakenOut, files: Sequence[FileHandle | KeyedFile], first: int) -> None:
        before = dict(self._numbers)
        real(self, files, first)
        handles = {id(each.file) for each in files if isinstance(each, KeyedFile)}
        self._numbers = {key: at for key, at in self._numbers.items() if key not in handles or key in before}

    patch.put(FilesTakenOut, "_number", number)


# ------------------------------------------------------------------ refusals


@mutant("false-traces-refused", TRACES)
def lines_are_not_counted(patch: Patch) -> None:
    def read(lines: Iterable[bytes]) -> Iterator[TraceEntry]:
        files = FilesPutBack()
        yield from (trace.decode(line, files) for line in lines if line.endswith(b"\n"))

    patch.function(trace, "read", read)


@mutant("false-traces-refused", TRACES)
def what_cannot_be_read_is_left_out(patch: Patch) -> None:
    real = trace.decode

    def read(lines: Iterable[bytes]) -> Iterator[TraceEntry]:
        files = FilesPutBack()
        for line in lines:
            try:
                yield real(line, files)
            except UnreadableTraceError:
                continue

    patch.function(trace, "read", read)


@mutant("false-traces-refused", TRACES)
def the_format_is_not_compared(patch: Patch) -> None:
    real = trace.decode

    def decode(line: bytes, files: FilesPutBack | None = None) -> TraceEntry:
        begin = line.find(b',"number"')
        return real(b'{"format":%d' % trace.FORMAT + line[begin:] if begin > 0 else line, files)

    patch.put(trace, "decode", decode)


@mutant("false-traces-refused", TRACES)
def numbers_of_files_that_never_came_are_cut_off(patch: Patch) -> None:
    real = FilesPutBack._of_run

    def of_run(self: FilesPutBack, run: list[Any], kind: type[Any]) -> list[Any]:
        known = len(self._numbered)
        fits = run[0] < known and run[0] >= 0
        return real(self, [run[0], min(run[1], known - run[0])] if fits else run, kind)

    patch.put(FilesPutBack, "_of_run", of_run)
