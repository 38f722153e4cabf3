"""What holds for every test: hypothesis prints what repeats a failure, and never fails for the time that it took."""

from hypothesis import settings

settings.register_profile("quire", deadline=None, print_blob=True)
settings.load_profile("quire")
