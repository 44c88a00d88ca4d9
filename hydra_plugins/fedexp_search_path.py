"""Config folders of installed packages; Hydra takes plugins only from ``hydra_plugins``."""

from hydra.core.config_search_path import ConfigSearchPath
from hydra.plugins.search_path_plugin import SearchPathPlugin

from fedexp.cli.installed import config_folders


class InstalledOptions(SearchPathPlugin):
    """Adds the options of packages that registered a config folder; see ``config_folders``."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Called by Hydra at every start. fedexp's own options come first."""
        for origin, folder in config_folders():
            search_path.append(provider=origin, path=f"file://{folder}")
