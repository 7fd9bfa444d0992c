"""Where options and recipes lie: ``conf/STAGE/OPTION.yaml``, ``recipes/NAME.yaml``, a user's own folder."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import fasttrain
from fasttrain.errors import ConfigError, Problem
from fasttrain.regular_file import what_instead

RECIPE = "recipe"
NO_RECIPE = "none"
# What a newcomer is pointed to: it needs no data of their own.
FIRST_RECIPE = "quickstart"


@dataclass(frozen=True)
class OptionFile:
    """One YAML file that can be chosen with ``GROUP=NAME``.

    Attributes:
        shown: How messages name it: ``recipes/x.yaml``, or the whole path of a user's own file.
        shipped: Whether it is one of ``conf/``, which Hydra finds by itself.
    """

    group: str
    name: str
    path: Path
    shown: str
    shipped: bool

    @property
    def stamp(self) -> tuple[int, int]:
        """Changes when the file does: its time of change in ns and its size in bytes."""
        found = self.path.stat()
        return found.st_mtime_ns, found.st_size

    @property
    def description(self) -> str:
        """Its first line of comment, empty where there is none."""
        try:
            lines = self.path.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return ""
        comments = (line.lstrip("# ").strip() for line in lines if line.startswith("#"))
        return next((line for line in comments if line and not line.startswith("@package")), "")


def project_folder(name: str) -> Path:
    """``conf`` or ``recipes``: inside the package (a wheel) or beside it (a checkout)."""
    package = Path(fasttrain.__file__).resolve().parent
    for folder in (package / name, package.parent / name):
        if folder.is_dir():
            return folder
    raise ConfigError(Problem(f"the folder {name}/ of fasttrain is missing", "install fasttrain again"))


class OptionFiles:
    """All files that a run may be composed of, found once at its start; none is read yet.

    Args:
        config_dir: A user's own folder, with ``recipe/NAME.yaml`` or ``STAGE/NAME.yaml`` in it.
        recipe_dirs: Further folders of ``NAME.yaml`` recipes.
    """

    def __init__(self, config_dir: Path | None = None, recipe_dirs: Sequence[Path] = ()) -> None:
        self.conf = project_folder("conf")
        self.problems: list[Problem] = []
        self._clashes: dict[tuple[str, str], Problem] = {}
        self._files: dict[str, dict[str, OptionFile]] = {}
        for folder in sorted(path for path in self.conf.iterdir() if path.is_dir()):
            self._add(folder.name, folder, f"conf/{folder.name}", shipped=True)
        self._files[RECIPE] = {}
        recipes = project_folder("recipes")
        self._add(RECIPE, recipes, "recipes", shipped=False)
        for folder in recipe_dirs:
            self._add(RECIPE, folder, str(folder), shipped=False)
        if config_dir is not None:
            self._add_config_dir(config_dir)

    @property
    def groups(self) -> list[str]:
        return list(self._files)

    def names(self, group: str) -> list[str]:
        return sorted(self._files[group])

    def get(self, group: str, name: str) -> OptionFile | None:
        return self._files.get(group, {}).get(name)

    def clash(self, group: str, name: str) -> Problem | None:
        """What is wrong with choosing this name: two files have it."""
        return self._clashes.get((group, name))

    def recipes(self) -> Iterator[tuple[str, str]]:
        """Name and one-line description of each recipe."""
        return ((name, self._files[RECIPE][name].description) for name in self.names(RECIPE))

    def first_recipe(self) -> str | None:
        """The recipe to suggest where none is meant."""
        names = self.names(RECIPE)
        return FIRST_RECIPE if FIRST_RECIPE in names else next(iter(names), None)

    def _add(self, group: str, folder: Path, shown: str, *, shipped: bool) -> None:
        known = self._files.setdefault(group, {})
        for path in sorted(folder.glob("*.y*ml")):
            name = f"{shown}/{path.name}"
            # A link to nothing is what some editors leave beside a file that they have open.
            if path.exists() and (wrong := what_instead(path)):
                self.problems.append(Problem(f"{name}: {wrong}", f"remove {name}"))
            elif path.stem in known:
                what = f"{group}={path.stem}: {known[path.stem].shown} and {name} both have this name"
                self._clashes[group, path.stem] = Problem(what, f"rename {name}")
            else:
                known[path.stem] = OptionFile(group, path.stem, path.resolve(), name, shipped)

    def _add_config_dir(self, config_dir: Path) -> None:
        if not config_dir.is_dir():
            self.problems.append(
                Problem(
                    f"--config-dir={config_dir}: no such folder",
                    "--config-dir DIR, with DIR/recipe/NAME.yaml",
                )
            )
            return
        own = sorted(path.stem for path in config_dir.glob("*.y*ml"))
        if own and not any((config_dir / group).is_dir() for group in self.groups):
            self._add_too_low(config_dir, own)
        for group in self.groups:
            self._add(group, config_dir / group, str(config_dir / group), shipped=False)
        for folder in sorted(path for path in config_dir.iterdir() if path.is_dir()):
            meant = difflib.get_close_matches(folder.name, self.groups, n=1, cutoff=0.8)
            if meant and folder.name not in self._files and any(folder.glob("*.y*ml")):
                self.problems.append(Problem(f"{folder}: nothing reads this folder", f"rename it to {meant[0]}/"))

    def _add_too_low(self, config_dir: Path, names: list[str]) -> None:
        """Says that a folder of files is not the one around it; its files are known, not to be missed too."""
        folder = config_dir.resolve()
        group = folder.name if folder.name in self.groups else RECIPE
        self._add(group, config_dir, str(config_dir), shipped=False)
        chosen = f"{group}={names[0] if len(names) == 1 else 'NAME'}"
        if folder.name == group:
            what = f"--config-dir={config_dir}: one level too low: it is the folder {group}/ itself"
            fix = paste_words(chosen, folder.parent)
        else:
            what = f"--config-dir={config_dir}: has no folder {RECIPE}/; recipes lie in DIR/{RECIPE}/NAME.yaml"
            fix = f"move them into {shlex.quote(str(config_dir / RECIPE))}/"
        self.problems.append(Problem(what, fix))


def paste_words(choice: str, config_dir: Path) -> str:
    """``recipe=NAME --config-dir DIR`` as a shell takes it."""
    return f"{choice} --config-dir {shlex.quote(str(config_dir))}"
