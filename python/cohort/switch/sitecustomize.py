"""Serves the `gloo` of a program that does not import cohort: COHORT_TORCH_BACKEND=cohort.

`dlaunch --torch-backend cohort` puts this folder first on PYTHONPATH, so every Python of a rank runs this file at its
start, its child processes too. It does nothing but wait for `import torch`. Another sitecustomize further along the path
runs as if this one were not there."""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


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
        if not isinstance(finder, _TorchFinder) and hasattr(finder, "find_spec"):
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                return spec
    return None


class _TorchFinder:
    """Finds torch as the other finders do, and has cohort registered behind its import."""

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
    """The package beside this folder serves, so that it is the one of this dlaunch, wherever Python looks for modules."""
    try:
        if "cohort" not in sys.modules:
            import importlib.util

            package = os.path.dirname(_HERE)
            spec = importlib.util.spec_from_file_location("cohort", os.path.join(package, "__init__.py"),
                                                          submodule_search_locations=[package])
            sys.modules["cohort"] = importlib.util.module_from_spec(spec)
            try:
                spec.loader.exec_module(sys.modules["cohort"])
            except BaseException:
                del sys.modules["cohort"]
                raise
        from cohort.torch.registration import register
    except ImportError as error:
        raise RuntimeError(f"COHORT_TORCH_BACKEND=cohort: the package cohort cannot be imported by {sys.executable} "
                           f"({sys.version.split()[0]}): {error}. It wants Python 3.11 or later; use one, or leave out "
                           "--torch-backend cohort") from error
    register()


_leave_path()
if os.environ.get("COHORT_TORCH_BACKEND") == "cohort" and "torch" not in sys.modules:
    sys.meta_path.insert(0, _TorchFinder())
_run_next()
