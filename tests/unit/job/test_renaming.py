"""The files of a renamed table get paths that belong to the tick alone, until an entry names them (G2)."""

from checkpointing.commit.cleanup import is_leftover
from checkpointing.graph import JobGraph, Table, TableMode, Vertex, VertexKind
from checkpointing.handles import FileHandle
from checkpointing.identifiers import EdgeId, Generation, JobName, TableName
from checkpointing.job.renaming import relocated_files
from checkpointing.metadata.paths import parse_staged_name

OLD, NEW = TableName("gold/old"), TableName("gold/new")
UNIQUE = "0123456789abcdef0123456789abcdef"
WRITER = Vertex("sums", VertexKind.KEYED, 1, (Table(NEW, TableMode.UPSERT, ("k",)),))
GRAPH = JobGraph((Vertex("s", VertexKind.SOURCE, 1, splits=("a",)), WRITER), (EdgeId("s", "sums"),))


def moved(*paths, inline=""):
    """Return the files of these paths after generation 7 renamed their table, and the links."""
    files = [FileHandle(path, 1, 1, 0, inline=inline) for path in paths]
    return relocated_files(files, JobName("job"), {OLD: NEW}, Generation(7))


def test_a_link_belongs_to_the_generation_and_not_to_a_micro_batch(job):
    """A dead tick's link is a leftover. One that an entry of its generation names is not, whatever the counter was."""
    (file,), links = moved(f"{OLD}/_data/3/sums-500-{UNIQUE}.parquet")
    name = parse_staged_name(file.path.rpartition("/")[2])
    assert (f"{NEW}/_data/7", "sums", 0) == (file.path.rpartition("/")[0], name.vertex, name.micro_batch)
    assert {file.path: f"{OLD}/_data/3/sums-500-{UNIQUE}.parquet"} == links
    before, after = (job.record(GRAPH, 3, {}, generation=generation) for generation in (Generation(3), Generation(7)))
    assert is_leftover(name, Generation(7), current=Generation(8), newest=before)
    assert not is_leftover(name, Generation(7), current=Generation(8), newest=after)
    assert not is_leftover(name, Generation(7), current=Generation(7), newest=before)


def test_foreign_files_and_files_of_one_name_stay_apart():
    """A compacted file gets a staged name. Two files of one name in two folders get two names."""
    paths = [
        f"{OLD}/part-0.parquet",
        f"{OLD}/_data/3/sums-1-{UNIQUE}.parquet",
        f"{OLD}/_data/4/sums-1-{UNIQUE}.parquet",
    ]
    files, links = moved(*paths)
    assert 3 == len(links) == len({file.path for file in files})
    assert all(parse_staged_name(file.path.rpartition("/")[2]) for file in files)


def test_inline_files_and_files_elsewhere_need_no_link():
    """A small state is inside its entry. A table that keeps its name keeps its files."""
    (file,), links = moved(f"{OLD}/_data/3/sums-1-{UNIQUE}.parquet", inline="AA==")
    assert file.path.startswith(f"{NEW}/_data/7/")
    assert {} == links
    (other,), links = moved("gold/older/part-0.parquet")
    assert ("gold/older/part-0.parquet", {}) == (other.path, links)
