"""Pictures of the playground for docs/serving.md, from servers that run:

superbloom serve superbloom-demo/model --port 8123 &  superbloom serve TEXT-MODEL --port 8124 &
python -m benchmarks.pictures --names http://127.0.0.1:8123/ --text http://127.0.0.1:8124/ --out docs/playground
"""

from __future__ import annotations

import argparse
import io
import shutil
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

WIDE, PHONE = {"width": 1100, "height": 900}, {"width": 360, "height": 780}
ASKED = "#c=Copenhagen&c=Paris&k=10"
PICTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "ask": (ASKED, {"viewport": WIDE}),
    "why": (f"{ASKED}&why=0:Denmark", {"viewport": WIDE}),
    "uncertified": (f"{ASKED}&beam=1", {"viewport": WIDE}),
    "report": ("#tab=report", {"viewport": WIDE}),
    "dark": (ASKED, {"viewport": WIDE, "color_scheme": "dark"}),
    "phone": (ASKED, {"viewport": PHONE}),
}
TEXT = "#t=Miles+Davis+was+born+in+[MASK1]+and+died+in+[MASK2]+."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--names", required=True, help="address of a server of the demo's model")
    parser.add_argument("--text", help="address of a server of a model of text")
    parser.add_argument("--out", type=Path, default=Path("docs/playground"))
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])

        def shoot(name: str, address: str, options: dict[str, Any]) -> None:
            page = browser.new_page(**options)
            page.goto(address, wait_until="networkidle")
            page.wait_for_timeout(500)
            picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
            picture.quantize(128).save(given.out / f"{name}.png", optimize=True)  # a third of the bytes
            page.close()

        for name, (fragment, options) in PICTURES.items():
            shoot(name, given.names + fragment, options)
        if given.text:
            shoot("text", given.text + TEXT, {"viewport": WIDE})
        browser.close()


if __name__ == "__main__":
    main()
