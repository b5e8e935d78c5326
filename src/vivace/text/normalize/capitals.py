"""Words in capitals: which are spelled (`FBI`), which are names (`NASA`), which are shouted."""

from __future__ import annotations

import re

from vivace.text.normalize.lists import word_set
from vivace.text.normalize.numbers import cardinal, ordinal, roman
from vivace.text.normalize.reading import Reading, begins_sentence
from vivace.text.normalize.tokens import Token, TokenReader

# Read as words though always written in capitals.
_SPOKEN = word_set(
    "NASA NATO UNESCO UNICEF OPEC AIDS COVID FIFA UEFA NAFTA ASCII JPEG JSON RAM ROM LAN WAN PIN "
    "SIM SWAT ZIP YAML TODO WIFI IKEA LEGO DARPA NOAA NASDAQ OSHA FEMA POTUS SCOTUS LASER "
    "RADAR SCUBA SONAR CAPTCHA RAID BASIC NAND ACID CRUD REST SOAP AJAX LAMP MIDI HIPAA ERISA "
    "FICA PAC TED MERS SARS EBITDA ISIS HAMAS INTERPOL EURATOM CERN ESA ANSI NERF TASER MOSFET VISA"
)
# Spelled though they could be read.
_SPELLED = word_set(
    "UCLA USA UAE UFO EU UN UK US AI AM PM ID IP IT IO OS OK API APR ATM AOL AKA ASAP AARP IEEE "
    "USAF UPS UPC URI URL USB VIP VAT VAR WHO RIP SOS SUV TBA PIP PC POW POV PHD MIA IRA IPO IOU "
    "IOS IMO ISO ISP HIV GUI GIS FAQ ETA EMI ESL EPA EDT CIA CEO CFO COO CIO CTO BIO BBC ABC ADHD "
    "AFK AAA ACLU AFC AMC ANC AOC AUX BMI BPA CAD CAM DIY DOA DOB DOE DOI DUI ECG EEG EKG EOD "
    "EOF ESPN EULA GED GOP HBO HMO HOA ICU IED IQ IRS KIA LCD LED LOL MBA MIT MLB MRI NBA NCAA "
    "NFL NHL NIH NSA OCD OCR OMG OEM PBS PDF PSA PTA RNA RSVP SEC SEO TSA TLC UI UX YMCA "
    "IMDB IBAN"
)
# Words of two and three letters that are shouted more often than meant as letters.
_SMALL = word_set(
    "THE AND YOU NOT ARE FOR BUT ALL NOW NEW OUT ON OF IN TO IS AT BY WE HE MY NO SO UP GO DO IF "
    "AS OR AN BE ME HIS HER SHE HIM OUR HAS HAD WAS DID CAN GET GOT LET PUT SAY SEE USE WAY DAY "
    "MAN BOY BIG BAD OLD HOT RED ONE TWO SIX TEN ANY WHY HOW YES TOO OFF RUN SIT EAT BUY PAY TRY "
    "END TOP AGO AIR ARM ASK BAG BED BIT BOX CAR CAT CUT DOG DRY EYE FAR FEW FLY FUN GUN HIT ICE "
    "JOB KEY LAW LAY LEG LIE LOT LOW MAY MIX NOR ODD OWN PER RAW ROW SAD SEA SET SKY SON SUM SUN "
    "TAX TEA TIE TOY WAR WET WIN WON YET ALSO OH AH HI HEY WOW MOM DAD BYE OPEN EXIT STOP SALE "
    "FREE HELP US IT WHO AM"
)
# Of those, the ones that are letters unless everything around is in capitals too.
_UNSURE = word_set("US IT WHO AM OR ME")
_SAID = {"OK": "okay", "README": "read me"}
_CONTRACTION = re.compile(r"([A-Z]+)(N?['’](?:T|S|RE|LL|VE|D|M))")
_CAPITALS = re.compile(r"([A-Z][A-Z'’&-]*[A-Z])((?:['’]?s)?)")
# What no English word of up to five letters begins or ends with.
_ODD_START = re.compile(
    r"[^AEIOUY]{4}|[BCDFGJKMNPTVXZ][BCDFGJKMNPTVXZ]|[LRNM][BCDFGJKLPTSVXZ]|H[^AEIOUY]|S[BGRXZ]"
)
_FINE_START = re.compile("(?:PS|KN|GN|PN|PT|CZ|TS|MN)[AEIOUY]")
_FINE_END = re.compile(
    "[AEIOUY]|[AEIOUY](?:[^AEIOUYQ]|[LNR][DKLMNPSTGVZ]?[DKST]?|[SCFPXBLMNRTDGW]?[STHKZ]|NG|NGS|MP|GHT?"
    "|[TNR]CH|RTH|NTH|RST|[CFP]TS|SKS|LF|RF|WN|WL|CKS?|FF|GG|TT|SS|SM|LM|MB|SP|LVES?|GN|PSE|THS?)"
)
_VOWEL = re.compile("[AEIOUY]")
_BEFORE_NUMERALS = word_set(
    "chapter part act section volume book scene war phase stage type class level appendix article "
    "title season episode grade tier day mark bowl figure table category quadrant step psalm "
    "schedule"
)
_RULERS = word_set(
    "Henry Louis George Edward Charles Elizabeth James William Richard Mary Philip Frederick "
    "Peter Nicholas Alexander Napoleon Ivan Gregory Clement Innocent Urban Constantine Ramses "
    "Ferdinand Wilhelm Gustav Carl Christian Harald Otto Catherine Pius Benedict Leo Paul Francis "
    "Boniface Julius Sixtus Celestine Haakon Olaf Umberto Albert Leopold Baldwin Robert Malcolm "
    "Margaret Joseph Franz Rudolf Selim Murad Mehmed Suleiman Darius Xerxes Ptolemy Amenhotep "
    "Seti"
)


def spell_letters(letters: str) -> str:
    """`FBI` as `F B I`."""
    return " ".join(letters.upper())


def read_capitals(reader: TokenReader) -> Reading | None:
    token = reader.token()
    assert token is not None
    if (numeral := _read_numeral(reader, token)) is not None:
        return numeral
    found = _CAPITALS.fullmatch(token.core)
    if found is None:
        return None
    word, ending = found[1], found[2]
    if "&" in word:
        return Reading(
            " and ".join(spell_letters(part) for part in word.split("&") if part) + ending
        )
    if contraction := _CONTRACTION.fullmatch(word):
        return Reading(_read_contraction(contraction, reader))
    if "-" in word:
        parts = re.sub("[A-Z]{2,}", lambda part: read_word(part[0], is_loud=True), word)
        return Reading(parts + ending)
    return Reading(_join_plural(read_word(word, is_loud=is_loud(reader)), word, ending, reader))


def _read_contraction(found: re.Match[str], reader: TokenReader) -> str:
    """`DON'T` is shouted, and `NASA'S` may be."""
    is_not = found[2].endswith("T")
    words = found[1].lower() if is_not else read_word(found[1], is_loud=False)
    words += found[2].lower()
    return words.capitalize() if begins_sentence(reader) and " " not in words else words


def _join_plural(words: str, word: str, ending: str, reader: TokenReader) -> str:
    is_shouted = words == word.lower()
    if is_shouted and begins_sentence(reader):
        words = words.capitalize()
    return f"{words}'s" if ending == "s" and " " in words else words + ending


def read_word(word: str, *, is_loud: bool) -> str:
    """A word in capitals, small or in letters; `is_loud` if its neighbours are in capitals too."""
    if len(word) == 1:
        return word.lower() if is_loud and word != "I" else word
    if word in _SMALL and (is_loud or word not in _UNSURE):
        return word.lower()
    if word in _SAID:
        return _SAID[word]
    if word in _SPOKEN:
        return word.capitalize()
    # A short word is letters unless its neighbours are shouted too.
    is_word = (is_loud or len(word) > 3) and word not in _SPELLED and is_pronounceable(word)
    return word.lower() if is_word else spell_letters(word)


def is_pronounceable(word: str) -> bool:
    """Whether English could have a word like it; a longer one nearly always is one."""
    if _VOWEL.search(word) is None:
        return False
    if len(word) > 5:
        return True
    if _ODD_START.match(word) and not _FINE_START.match(word):
        return False
    last_vowel = max(word.rfind(vowel) for vowel in "AEIOUY")
    return _FINE_END.fullmatch(word, last_vowel) is not None


def is_loud(reader: TokenReader) -> bool:
    """Whether a neighbour is in capitals too, and no list of abbreviations is likely."""
    before = reader.before
    if before is not None and _is_shouted(before):
        return True
    token = reader.token()
    if token is None or any(stop in token.trail for stop in ".!?"):
        return False
    following = reader.token(1)
    return following is not None and _is_shouted(following)


def _is_shouted(token: Token) -> bool:
    """Whether it is a word in capitals, not an abbreviation."""
    word = token.core
    if not word.isalpha() or not word.isupper() or len(word) < 2 or word in _SPELLED | _SPOKEN:
        return word in _UNSURE and len(word) > 1
    return word in _SMALL or (len(word) > 3 and is_pronounceable(word))


def _read_numeral(reader: TokenReader, token: Token) -> Reading | None:
    """`Henry VIII` and `World War II`; a lone `I` only after a word that wants a number."""
    value = roman(token.core)
    before = reader.before
    if value is None or before is None or not before.is_open or token.core in ("X", "V"):
        return None
    if before.core.lower() in _BEFORE_NUMERALS and before.core[:1].isupper():
        return Reading(cardinal(value))
    if token.core == "I" or not (before.core[:1].isupper() and before.core[1:].islower()):
        return None
    return Reading(f"the {ordinal(value)}" if before.core in _RULERS else cardinal(value))
