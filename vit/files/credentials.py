"""Credentials in a config or command: API keys, tokens, passwords, and the user and password of a URL.

A run uses them, and everything that it saves has `***` in their place.
"""

import re
from typing import Any

HIDDEN = "***"
NAMES = (r"(?:\w*_)?(?:api_?key|access_key|secret_key|private_key|password|passwd|passphrase|secret|credentials?)"
         r"|(?:\w*_)?(?:api|access|auth|bearer|hf|hub)_token|token|authorization")
KEY = re.compile(rf"(?:^|\.)(?:{NAMES})$", re.IGNORECASE)  # model.class_token is none
# a key with its value in the text of a dictionary, such as {api_key: 4f2a}
INNER = re.compile(rf"""((?:^|[{{,\s'"])(?:{NAMES})['"]?\s*:\s*)('[^']*'|"[^"]*"|[^,}}\]\s][^,}}\]]*)""", re.IGNORECASE)
USER = re.compile(r"(?<=://)[^/\s'\"]+@")  # the user and password in a URL
REFERENCE = "${"  # an interpolation, such as ${oc.env:API_KEY}, is no credential
OVERRIDE = re.compile(r"[+~]*[\w./@-]+=")


def is_secret(key: object, value: Any) -> bool:
    """Whether a key such as `api_key` has a text, which is then a credential."""
    return isinstance(key, str) and isinstance(value, str) and bool(value) and KEY.search(key) is not None


def masked(value: Any) -> Any:
    """Plain values with `***` in place of every credential; texts in lists may be overrides."""
    if isinstance(value, dict):
        return {key: HIDDEN if is_secret(key, inner) and REFERENCE not in inner else masked(inner)
                for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [masked_override(each) if isinstance(each, str) else masked(each) for each in value]
    return masked_url(value) if isinstance(value, str) else value


def masked_override(override: str) -> str:
    """A command-line override with `***` in place of credentials; other texts have only those of a URL masked."""
    if not OVERRIDE.match(override):
        return masked_url(override)
    key, _, value = override.partition("=")
    if is_secret(key.lstrip("+~"), value) and value != "null" and REFERENCE not in value:
        return f"{key}='{HIDDEN}'"
    return f"{key}={INNER.sub(hide_inner, masked_url(value))}"


def hide_inner(found: re.Match[str]) -> str:
    """The replacement of a match of `INNER`."""
    return found[0] if REFERENCE in found[2] or found[2].strip() == "null" else f"{found[1]}'{HIDDEN}'"


def masked_url(text: str) -> str:
    """A text whose URLs have `***` in place of user and password."""
    return USER.sub(f"{HIDDEN}@", text) if REFERENCE not in text else text


def is_masked(value: Any) -> bool:
    """Whether a saved value is one that was masked."""
    return isinstance(value, str) and (value == HIDDEN or f"://{HIDDEN}@" in value)


def masked_keys(node: Any, key: str = "") -> list[str]:
    """The dotted keys of all masked values in nested dicts and lists."""
    if isinstance(node, dict | list):
        inner = node.items() if isinstance(node, dict) else enumerate(node)
        return [found for name, each in inner for found in masked_keys(each, f"{key}.{name}" if key else str(name))]
    return [key] if is_masked(node) else []


def restored(stored: Any, given: Any, key: object = "") -> Any:
    """A stored config whose masked values are replaced by the credentials of the config `given`, if it has them.

    Only masked values are replaced. The stored config may come from a third party.
    """
    if isinstance(stored, dict):
        return {name: restored(inner, given.get(name) if isinstance(given, dict) else None, name)
                for name, inner in stored.items()}
    if isinstance(stored, list) and isinstance(given, list) and len(stored) == len(given):
        return [restored(*both) for both in zip(stored, given, strict=True)]
    return given if is_masked(stored) and masked({key: given}) == {key: stored} else stored
