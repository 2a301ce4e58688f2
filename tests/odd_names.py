"""The one list of odd names: a folder or a file may have them, and an engine could misread them."""

import unicodedata

NAMES = {
    "space": "a b",
    "two spaces at the ends": " a ",
    "umlaut, composed (NFC)": unicodedata.normalize("NFC", "ä"),
    "umlaut, decomposed (NFD)": unicodedata.normalize("NFD", "ä"),
    "other script": "表",
    "emoji": "\N{GRINNING FACE}",
    "no-break space": "a\N{NO-BREAK SPACE}b",
    "ideographic space": "a\N{IDEOGRAPHIC SPACE}b",
    "hash": "a#b",
    "percent": "50%",
    "percent before no digits": "a%zz",
    "question mark": "a?b",
    "star": "a*b",
    "star alone": "*",
    "braces": "a{b,c}d",
    "dollar": "a$b",
    "dollar and braces": "${HOME}",
    "ampersand": "a&b",
    "single quote": "a'b",
    "double quote": 'a"b',
    "back quote": "a`b",
    "comma": "a,b",
    "semicolon": "a;b",
    "equals": "a=b",
    "plus": "a+b",
    "at": "a@b",
    "at and a number": "a@7",
    "exclamation mark": "a!b",
    "tilde": "~a",
    "colon": "a:b",
    "drive": "c:",
    "scheme": "file:x",
    "emoji code of a terminal": "a:smile:b",
    "parentheses": "(a)",
    "angle brackets": "<a>",
    "trailing dot": "a.",
    "leading dash": "-a",
}
"""Names that work for a warehouse, a data folder and an input file."""

NAMES_OF_FOLDERS = NAMES | {"leading underscore": "_a", "leading dot": ".a"}
"""A file with such a name is hidden by convention. A folder that a user names so is not hidden."""

NOT_FOR_DELTA = {
    "encoded space": "x%20y",
    "encoded slash": "a%2Fb",
    "brackets": "a[b]",
    "opening bracket": "a[b",
    "caret": "a^b",
    "pipe": "a|b",
    "newline": "a\nb",
    "tab": "a\tb",
    "delete": "a\x7fb",
    "backslash": "a\\b",
}
"""Names that delta-rs cannot open. They are refused for a warehouse. A data folder and an input file may have them."""

ALL_IN_ONE = "-. ä 表#50%zz?*{b,c}${HOME}&'\"`;=+@7!~:(<a>) a\u0308\N{GRINNING FACE}."
"""One name with most oddities, for tests that are too long to try the whole list."""
