"""The `format`s of JSON schema: as regular expressions where llguidance's own are not exact, and which are refused."""

from collections.abc import Callable
from functools import cache

DAYS = "(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8])"
LEAP_YEAR = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)"
DATE = f"(?:[0-9]{{4}}-(?:{DAYS})|{LEAP_YEAR}-02-29)"
HOUR = "(?:[01][0-9]|2[0-3])"
MINUTE = "[0-5][0-9]"
FRACTION = r"(?:\.[0-9]+)?"
MINUTES_A_DAY = 24 * 60
LAST_MINUTE = MINUTES_A_DAY - 1

BYTE = "(?:[0-9]|[1-9][0-9]|1[0-9]{2}|2[0-4][0-9]|25[0-5])"
IPV4 = rf"(?:{BYTE}\.){{3}}{BYTE}"
GROUP = "[0-9a-fA-F]{1,4}"
LAST_TWO = f"(?:{GROUP}:{GROUP}|{IPV4})"
ATOM = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
QUOTED = r'"(?:[\x20-\x21\x23-\x5B\x5D-\x7E]|\\[\x20-\x7E])*"'
UUID = "[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}"
DURATION_DATE = "(?:[0-9]+D|[0-9]+M(?:[0-9]+D)?|[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?)"
DURATION_TIME = "T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S)"
DURATION = f"P(?:[0-9]+W|{DURATION_DATE}(?:{DURATION_TIME})?|{DURATION_TIME})"
PLAIN = "(?:[A-Za-z0-9._~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})"  # characters in any part of a URI
PATH = f"(?:{PLAIN}|[:@])"
AUTHORITY = f"(?:(?:{PLAIN}|:)*@)?{PLAIN}*(?::[0-9]*)?"  # addresses in brackets are missing
URI = (
    f"[A-Za-z][A-Za-z0-9+.-]*:(?://{AUTHORITY}(?:/{PATH}*)*|/?(?:{PATH}+(?:/{PATH}*)*)?)"
    rf"(?:\?(?:{PATH}|[/?])*)?(?:#(?:{PATH}|[/?])*)?"
)
LABEL = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"


def clock(minutes: int) -> str:
    return f"{minutes // 60 % 24:02}:{minutes % 60:02}"


@cache
def leap_seconds() -> str:
    """Times with second 60: the last of a day in UTC, so that each time of day has its own offset."""
    hours = [f"{hour:02}:(?:{'|'.join(leap_second(hour, minute) for minute in range(60))})" for hour in range(24)]
    return "|".join(hours)


def leap_second(hour: int, minute: int) -> str:
    """Second 60 of a minute, with its offsets from UTC east and west."""
    east = (60 * hour + minute - LAST_MINUTE) % MINUTES_A_DAY
    offsets = [rf"\+{clock(east)}", f"-{clock((-east) % MINUTES_A_DAY)}", *([] if east else ["[Zz]"])]
    return f"{minute:02}:60{FRACTION}(?:{'|'.join(offsets)})"


@cache
def time_of_day() -> str:
    return f"(?:{HOUR}:{MINUTE}:{MINUTE}{FRACTION}(?:[Zz]|[+-]{HOUR}:{MINUTE})|{leap_seconds()})"


@cache
def ipv6() -> str:
    """RFC 3986's nine forms: how many groups may stand before `::` depends on how many follow."""
    after = [f"(?:{GROUP}:){{{n}}}{LAST_TWO}" for n in (5, 4, 3, 2, 1, 0)] + [GROUP, ""]
    forms = [f"(?:{GROUP}:){{6}}{LAST_TWO}"]
    for n_before, rest in enumerate(after):
        before = f"(?:(?:{GROUP}:){{0,{n_before - 1}}}{GROUP})?" if n_before else ""
        forms.append(f"{before}::{rest}")
    return f"(?:{'|'.join(forms)})"


@cache
def email() -> str:
    domain = rf"(?:{LABEL}(?:\.{LABEL})*|\[{IPV4}\]|\[IPv6:{ipv6()}\])"
    return rf"(?:{ATOM}(?:\.{ATOM})*|{QUOTED})@{domain}"


EXACT: dict[str, Callable[[], str]] = {
    "date": lambda: DATE,
    "time": time_of_day,
    "date-time": lambda: f"{DATE}[Tt]{time_of_day()}",
    "ipv6": ipv6,
    "email": email,
}
KNOWN_TO_LLGUIDANCE = ("duration", "ipv4", "uuid", "uri")
# Formats that no regular expression can tell. Those that JSON schema does not define are only annotations.
REFUSED = (
    "hostname",
    "idn-hostname",
    "idn-email",
    "iri",
    "iri-reference",
    "uri-reference",
    "uri-template",
    "json-pointer",
    "relative-json-pointer",
    "regex",
)
