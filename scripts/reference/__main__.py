"""Write every page of docs/reference."""

from scripts.reference.pages import FOLDER, PAGES

for name, page in PAGES.items():
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / name).write_text(page())
