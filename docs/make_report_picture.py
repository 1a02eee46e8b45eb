"""Write docs/report.png: the first screen of the report that ``make demo`` writes, in a real browser.

python docs/make_report_picture.py          needs Chromium and the engine
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

DOCS = Path(__file__).resolve().parent
PAIR = DOCS.parent / "fixtures" / "tiny-js"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome-headless-shell")
SIZE = (860, 980)  # pixels


def main() -> int:
    browser = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if browser is None:
        sys.exit(f"none of {', '.join(BROWSERS)} is installed")
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        _tool(
            str(PAIR / "drafter"),
            "--target-model-dir",
            str(PAIR / "target"),
            "--target-name",
            "tiny-js",
            "-t",
            "q8_0",
            cwd=work,
        )
        files = ("dflash-tiny-js-Q8_0.gguf", str(PAIR / "target-bf16.gguf"))
        more = ("--prompts", str(PAIR / "prompts.jsonl"), "--n-max", "7", "--quick", "--html", "report.html")
        _tool("validate", *files, *more, cwd=work)
        call = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        call += [f"--user-data-dir={work / 'profile'}", f"--window-size={SIZE[0]},{SIZE[1]}"]
        call += [f"--screenshot={DOCS / 'report.png'}", (work / "report.html").as_uri()]
        subprocess.run(call, check=True, capture_output=True, timeout=120)
    return 0


def _tool(*arguments: str, cwd: Path) -> None:
    subprocess.run([sys.executable, "-m", "dflash_convert", *arguments], cwd=cwd, check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    sys.exit(main())
