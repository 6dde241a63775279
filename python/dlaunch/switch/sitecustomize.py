"""Serves the `gloo` of a program that does not import dlaunch: COHORT_TORCH_BACKEND=cohort.

`dlaunch --torch-backend cohort` puts this folder first on PYTHONPATH, so every Python of a rank runs this file at its
start, its child processes too. It does nothing but wait for `import torch`. Another sitecustomize further along the path
runs as if this one were not there."""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))
_PACKAGE = os.path.dirname(_HERE)


def _leave_path():
    """Modules are never looked for here again, and `sitecustomize` is the next one on the path."""
    sys.path[:] = [entry for entry in sys.path if not entry or os.path.abspath(entry) != _HERE]
    sys.path_importer_cache.pop(_HERE, None)


def _run_next():
    """Runs the sitecustomize that Python would have run."""
    spec = _found("sitecustomize")
    if spec is None or spec.loader is None:
        return
    import importlib.util

    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


def _found(name, path=None, target=None):
    """Asks the other finders."""
    for finder in list(sys.meta_path):
        if not isinstance(finder, (_TorchFinder, _PackageFinder)) and hasattr(finder, "find_spec"):
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                return spec
    return None


def _namesake():
    """The file of the program's own module called dlaunch; None without one. Cohort's package may be installed."""
    spec = getattr(sys.modules.get("dlaunch"), "__spec__", None) or _found("dlaunch")
    if spec is None or spec.origin is None:
        return None
    folders = [folder for folder in spec.submodule_search_locations or () if os.path.isdir(folder)]
    is_ours = any(name.startswith("_comm.") for folder in folders for name in os.listdir(folder))
    return None if is_ours else spec.origin


class _PackageFinder:
    """Finds the package dlaunch beside this folder, which is the one of this launcher. Another one may be installed, and
    torch imports that by its entry point. A program's own module of the name is left alone."""

    def find_spec(self, name, path=None, target=None):  # noqa: ARG002
        if name != "dlaunch" or _namesake() is not None:
            return None
        import importlib.util

        return importlib.util.spec_from_file_location("dlaunch", os.path.join(_PACKAGE, "__init__.py"),
                                                      submodule_search_locations=[_PACKAGE])


class _TorchFinder:
    """Finds torch as the other finders do, and has the backend cohort registered behind its import."""

    def find_spec(self, name, path=None, target=None):
        if name != "torch" or name in sys.modules:
            return None
        spec = _found(name, path, target)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = _TorchLoader(spec.loader, self)
        return spec


class _TorchLoader:
    """The loader of torch. Programs that look at the module see the original."""

    def __init__(self, original, finder):
        self._original = original
        self._finder = finder

    def __getattr__(self, name):
        return getattr(self._original, name)

    def create_module(self, spec):
        return self._original.create_module(spec)

    def exec_module(self, module):
        module.__spec__.loader = module.__loader__ = self._original
        self._original.exec_module(module)
        if self._finder in sys.meta_path:
            sys.meta_path.remove(self._finder)
        _register()


def _register():
    other = _namesake()
    if other is not None:
        raise RuntimeError(f"COHORT_TORCH_BACKEND=cohort: the program has a module called dlaunch of its own, {other}, "
                           "which hides Cohort's package: rename it, or leave out --torch-backend cohort")
    try:
        from dlaunch.torch.registration import register
    except ImportError as error:
        remedy = "It wants Python 3.9 or later" if sys.version_info < (3, 9) else "Install it for this Python"
        raise RuntimeError(f"COHORT_TORCH_BACKEND=cohort: the package dlaunch cannot be imported by {sys.executable} "
                           f"({sys.version.split()[0]}): {error}. {remedy}, or leave out --torch-backend cohort"
                           ) from error
    register()


_leave_path()
if os.environ.get("COHORT_TORCH_BACKEND") == "cohort" and "torch" not in sys.modules:
    sys.meta_path[:0] = [_TorchFinder(), _PackageFinder()]
_run_next()
