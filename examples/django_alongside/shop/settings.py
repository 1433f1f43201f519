"""The settings that the example needs."""

import os
from pathlib import Path

SECRET_KEY = "only an example"
DEBUG = False
ALLOWED_HOSTS = ["127.0.0.1", "testserver"]
INSTALLED_APPS = ["shop"]
ROOT_URLCONF = "shop.views"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("DATABASE", str(Path(__file__).parent.parent / "shop.db")),
        # SQLite allows one writer at a time: wait for it at the start of a transaction, not in the middle
        "OPTIONS": {
            "timeout": 30,
            "transaction_mode": "IMMEDIATE",
            "init_command": "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL",
        },
    }
}
