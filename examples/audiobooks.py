"""Make audiobooks of all books in a folder: EPUB, HTML, markdown and text.

    pip install '.[av,books]'
    python examples/audiobooks.py books/ audio/
    python examples/audiobooks.py books/ audio/ --model Qwen/Qwen3-TTS-12Hz-0.6B-CustomVoice \\
        --voice ryan

Each book becomes an .m4b file with chapters. Finished books are skipped, and an interrupted book
continues where it stopped. Options after the folders are those of `vivace read`.
"""

import json
import subprocess
import sys
from pathlib import Path

BOOKS = (".epub", ".html", ".xhtml", ".md", ".txt")


def read_book(book: Path, output: Path, options: list[str]) -> bool:
    command = [sys.executable, "-m", "vivace", "read", str(book), "-o", str(output), "--json"]
    done = subprocess.run([*command, *options], stdout=subprocess.PIPE, text=True, check=False)
    report = json.loads(done.stdout or "{}")
    if "error" in report:
        print(f"{book.name}: {report['error']}", file=sys.stderr)
    else:
        minutes, num_missing = report["audio_s"] / 60, len(report["missing_words"])
        print(f"{output.name}: {minutes:.1f} minutes, {num_missing} words not spoken")
    return done.returncode == 0


def main(books: str, audio: str, *options: str) -> int:
    Path(audio).mkdir(parents=True, exist_ok=True)
    num_failed = 0
    for book in sorted(path for path in Path(books).iterdir() if path.suffix in BOOKS):
        output = Path(audio) / f"{book.stem}.m4b"
        if output.exists():
            print(f"{output.name}: exists")
        elif not read_book(book, output, [*options]):
            num_failed += 1
    return 1 if num_failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
