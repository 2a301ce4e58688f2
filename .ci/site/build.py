"""Builds the documentation site out of README and docs: `python .ci/site/build.py TO`.

The pages lie as in the repository, so their links stay valid. mkdocs refuses a link to a page or a heading that does
not exist.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import yaml
from pymdownx.superfences import fence_code_format

ROOT = Path(__file__).resolve().parents[2]
TOP = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "LICENSE")
BESIDE = ("bench/results.md", "spec/README.md")
LIST = re.compile(r"(?:[-*]|\d+\.) ")
FENCED = re.compile(r"^(```.*?^```$)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)")
CHAPTERS = {
    "Start": ("README.md", "docs/guides/pipelines.md"),
    "Input": ("docs/guides/sources.md", "docs/guides/kafka.md", "docs/guides/postgres.md", "docs/guides/databases.md"),
    "Time": ("docs/guides/time.md", "docs/guides/joins-in-time.md"),
    "Output": ("docs/guides/read.md", "docs/guides/sinks.md", "docs/guides/catalogs.md"),
    "Run": (
        "docs/DAGSTER.md",
        "docs/guides/deploy.md",
        "docs/guides/operate.md",
        "docs/guides/observe.md",
        "docs/guides/catalogs.md",
    ),
    "Reference": (
        "docs/SETTINGS.md",
        "docs/GLOSSARY.md",
        "docs/FEATURES.md",
        "docs/FLINK_MAP.md",
        "docs/UPGRADING.md",
        "CHANGELOG.md",
    ),
}
"""The pages of each chapter. Guides that no chapter names follow under `Run`, and all other pages under `Inside`."""


def pages(source: Path) -> list[str]:
    """Copy the pages, their pictures and the files that they link to. Return the pages' paths."""
    shutil.copytree(ROOT / "docs", source / "docs")
    for name in (*TOP, *BESIDE):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, source / name)
    found = sorted(str(path.relative_to(source)) for path in source.rglob("*.md"))
    for page in found:
        (source / page).write_text(with_lists((source / page).read_text()))
        for link in LINK.findall((source / page).read_text()):
            linked = (ROOT / page).parent / link
            to = (source / page).parent / link
            if linked.is_file() and not to.exists():
                to.resolve().parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(linked, to)
    return found


def with_lists(text: str) -> str:
    """Return the text with an empty line before each list. Python's Markdown sees no list without it."""
    parts = FENCED.split(text)
    return "".join(part if part.startswith("```") else _with_lists(part) for part in parts)


def _with_lists(text: str) -> str:
    lines: list[str] = []
    for line in text.split("\n"):
        begins = LIST.match(line) is not None
        if begins and lines and lines[-1].strip() and not lines[-1].startswith(" ") and LIST.match(lines[-1]) is None:
            lines.append("")
        lines.append(line)
    return "\n".join(lines)


def navigation(found: list[str]) -> list[object]:
    """Return the chapters with their pages."""
    chapters = {title: list(names) for title, names in CHAPTERS.items()}
    placed = {name for names in chapters.values() for name in names}
    rest = [name for name in found if name not in placed]
    chapters["Run"] += [name for name in rest if name.startswith("docs/guides/")]
    inside = [name for name in rest if not name.startswith("docs/guides/") and "/adr/" not in name]
    decisions = [name for name in rest if "/adr/" in name]
    return [{title: names} for title, names in chapters.items()] + [{"Inside": [*inside, {"Decisions": decisions}]}]


def settings(source: Path, to: Path) -> dict[str, object]:
    """Return the configuration of mkdocs."""
    fence = {"name": "mermaid", "class": "mermaid", "format": fence_code_format}
    return {
        "site_name": "Tidemark",
        "site_description": "Flink's consistent checkpoints for Spark pipelines",
        "docs_dir": str(source),
        "site_dir": str(to),
        "strict": True,
        "use_directory_urls": False,
        "theme": {
            "name": "material",
            "font": False,
            "features": ["navigation.tabs", "navigation.top", "search.highlight", "content.code.copy"],
            "palette": [
                {"media": "(prefers-color-scheme: light)", "scheme": "default", "primary": "teal"},
                {"media": "(prefers-color-scheme: dark)", "scheme": "slate", "primary": "teal"},
            ],
        },
        "plugins": ["search"],
        "markdown_extensions": [
            "tables",
            {"toc": {"permalink": True}},
            "pymdownx.highlight",
            {"pymdownx.superfences": {"custom_fences": [fence]}},
        ],
        "validation": {"anchors": "warn", "unrecognized_links": "info", "not_found": "warn"},
        "nav": navigation(pages(source)),
    }


def main() -> None:
    """Build the site, and print where it is."""
    to = Path(sys.argv[1]).resolve()
    source = to.with_name("source")
    shutil.rmtree(source, ignore_errors=True)
    source.mkdir(parents=True)
    said = yaml.dump(settings(source, to), sort_keys=False)
    config = to.with_name("mkdocs.yml")
    config.write_text(said)
    done = subprocess.run(  # noqa: S603 - fixed words
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--config-file", str(config)],
        check=False,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
    )
    if done.returncode:
        sys.exit("tidemark: the site was not built; a page named above has a link that leads nowhere")
    sys.stdout.write(f"the site is in {to}\n")


if __name__ == "__main__":
    main()
