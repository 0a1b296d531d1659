"""A hook of the site: a link from a page to a file outside docs/ becomes the name of that file.

The house tests check that the file exists; the site has pages only.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

LINK = re.compile(r"\[([^\]]*)\]\(((?:\.\./)+[^)#:\s]+)\)")


def on_page_markdown(markdown: str, page: Any, config: Any, **rest: Any) -> str:
    """Exchange links that leave the folder of the documents."""
    folder, docs = Path(page.file.abs_src_path).parent, Path(config["docs_dir"])

    def shown(found: re.Match[str]) -> str:
        target = Path(os.path.normpath(folder / found[2]))
        if target.is_relative_to(docs):
            return found[0]
        return f"{found[1]} (`{target.relative_to(docs.parent).as_posix()}`)"

    return LINK.sub(shown, markdown)
