"""docs/tour.md against the run it tells of: what it quotes stands on the screen it shows."""

from __future__ import annotations

import re
import shlex

import make_tour

DOCUMENT = make_tour.IMAGES.parent / "tour.md"
_PICTURE = re.compile(r"!\[[^]]*\]\(img/tour-(\w+)\.svg\)")
_QUOTE = re.compile(r"^\| `([^`]+)` \|", re.MULTILINE)


async def test_what_the_tour_quotes_stands_on_its_screens(tmp_path):
    text = DOCUMENT.read_text()
    options = next(line for line in text.splitlines() if line.startswith("kvtop live ")).partition(" --record")[0]
    assert make_tour.OPTIONS.startswith(" ".join(shlex.split(options)[2:]))  # it is the reader's command that is run
    parts = _PICTURE.split(text)
    pictures = dict(zip(parts[1::2], parts[2::2], strict=True))
    made = await make_tour.shots(make_tour.serve(str(tmp_path)))
    assert list(pictures) == [shot.name for shot in make_tour.SHOTS]
    for name, told in pictures.items():
        quotes, screen = _QUOTE.findall(told), made[name][1]
        assert quotes
        missing = [quote for quote in quotes if quote not in screen]
        assert not missing, (name, missing, screen)


def test_its_pictures_are_there_and_small():
    for shot in make_tour.SHOTS:
        picture = make_tour.IMAGES / f"tour-{shot.name}.svg"
        assert 10_000 < picture.stat().st_size < 200_000
        assert picture.read_text().startswith("<svg")
