"""Training lines of conversation, of kinds that `hard_lines` and `templates` do not make.

Interjections, single words and very short sentences, quoted speech, unstressed function words
(above all at the start of a sentence), sequences of letters, names and handles. The caller must
normalize them.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from recipes.mini_voice.templates import CITIES, CLAUSES, FIRST, LAST, OBJECTS, THINGS, VERBS

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
VOWEL_LETTERS = "AEIO"  # A is the most difficult one: it is also a word
# Interjections that the voice of run 10 misread. "Brr", "Tsk" and "Pfft" are not here: the teacher
# spells them letter by letter.
MISREAD = (
    "Ugh", "Hmm", "Phew", "Shh", "Psst", "Mm-hmm", "Uh-huh", "Ha ha", "Aha", "Oops", "Wow", "Ouch",
)  # fmt: skip
INTERJECTIONS = (
    "Ha ha", "Ha ha ha", "Hahaha", "Hmm", "Mm-hmm", "Mhm", "Uh-huh", "Uh-oh", "Uh", "Um", "Oh",
    "Oh no", "Oh well", "Oh my", "Oh yes", "Oh dear", "Ah", "Aha", "Ah yes", "Aw", "Wow", "Ouch",
    "Oops", "Huh", "Phew", "Yay", "Hey", "Hey there", "Ugh", "Whoa", "Er", "Eh", "Yeah", "Yep",
    "Yup", "Nope", "Nah", "Eek", "Hooray", "Gosh", "Yikes", "Ooh", "Boo", "Bah", "Tut tut",
    "Well", "Well, well", "Okay", "Right", "Ahem", "Alas", "Bravo", "Cheers", "My goodness",
    "Good grief", "Come on", "Yes", "No", "Yes, yes", "No, no, no", "Now, now", "There, there",
)  # fmt: skip
WORDS = (
    "You", "Me", "Us", "Them", "Him", "Her", "It", "They", "We", "He", "She", "This", "That",
    "These", "Those", "Mine", "Yours", "Ours", "Theirs", "Here", "There", "Now", "Then", "Today",
    "Tonight", "Soon", "Later", "Never", "Always", "Often", "Again", "Perhaps", "Sure", "Fine",
    "Good", "Great", "Nice", "Wrong", "True", "False", "Please", "Sorry", "Hi", "Bye", "Goodbye",
    "Welcome", "Wait", "Go", "Come", "Look", "Listen", "Run", "Help", "Sit", "Stay", "Next", "Last",
    "First", "Done", "Ready", "Enough", "More", "Less", "Both", "All", "None", "Nothing",
    "Everything", "Someone", "Nobody", "Everyone", "What", "Who", "Where", "When", "How", "Which",
    "Really", "Exactly", "Indeed", "Quite", "Almost", "Up", "Down", "In", "Out", "On", "Off", "And",
    "But", "Or", "So", "If", "Because", "As", "At", "Of", "To", "For", "With", "From", "By", "Left",
    "Red", "Blue", "Black", "White", "One", "Two", "Three", "Ten", "Home", "Water", "Coffee", "Tea",
    "Monday", "Sunday", "North", "South", "Inside", "Outside", "Alone", "Together", "Impossible",
)  # fmt: skip
SHORT = (
    "No way", "Why not", "Of what", "To whom", "Who else", "What now", "So what", "Not me",
    "Not now", "Not here", "You too", "Right here", "Over there", "Come here", "Go home",
    "Sit down", "Stand up", "Hold on", "Hang on", "Look out", "Calm down", "Slow down", "Hurry up",
    "Let's go", "Let me see", "I see", "I know", "I do", "I did", "I can", "I will", "I won't",
    "You can", "You did", "You are", "We are", "It is", "It was", "He did", "She is", "They do",
    "That's it", "That's all", "That's right", "What is it", "Who is it", "Who are you",
    "Where to", "How so", "How come", "How much", "How many", "Since when", "Says who", "Do it",
    "Try it", "Take it", "Use it", "Leave it", "Got it", "Forget it", "All of it", "Some of them",
    "One of us", "None at all", "Not at all", "At last", "At once", "In time", "On time",
    "Too late", "Too soon", "Too bad", "Very well", "Well done", "Good job", "Good luck",
    "Good morning", "Good evening", "Good point", "Thank you", "Thanks a lot", "No thanks",
    "Yes please", "Is it", "Are you", "Did he", "Can we", "May I", "Shall we", "Yes, sir", "As if",
    "If only", "Or not", "And you", "But why", "Nor do I", "Not a word", "For what", "With whom",
)  # fmt: skip
WITH_A = ("AI", "AAA", "AA", "USA", "CIA", "FAQ", "ATM", "NBA", "MBA", "AWS", "API", "NASA", "DNA")
SAID = ("said", "asked", "replied", "whispered", "shouted", "answered", "cried", "muttered")
ANSWERS = (
    "Yes", "No", "Yes, please", "No, thanks", "Yes, sir", "Oh, yes", "Not yet", "Of course",
    "Maybe", "Me too", "So do I", "Us", "This one", "That is it", "These two", "Those are his",
    "Is it", "Was he", "Yours", "Hers", "As you wish", "There it is", "They are", "Then go",
)  # fmt: skip
MODALS = (
    "'ll", "'d", " can", " could", " would", " might", " must", " shall", " should", " may",
    " won't", " can't", " couldn't", " wouldn't", " shouldn't", " needn't", " didn't", " used to",
    " ought to", " had to", " will have to", " would have had to", "'d better", "'d rather not",
)  # fmt: skip
PRONOUNS = ("I", "you", "he", "she", "it", "we", "they")
BEEN = ("{}'d been", "{} had been", "{} could have been", "{} must have been", "{} will be")
TAILS = (
    "for him", "with her", "to them", "at us", "of it", "from me", "without you", "for us all",
    "as well", "at all", "on my own", "by the way", "in it", "to it", "of them", "with us", "if so",
    "and so do we", "or so it is said", "as he was told to", "than any of us", "for a while",
)  # fmt: skip
PLACES = (
    "the end of the street", "the top of a hill", "the side of the road", "the back of the house",
    "a corner of the room", "the middle of it all", "her own house", "one of the others",
    "the other side of the river", "an old shed by the gate", "the same place as before",
    "each of the three rooms", "most of the shops in town", "the first of the two bridges",
)  # fmt: skip
PREPOSITIONS = (
    "at", "in", "on", "by", "from", "to", "near", "behind", "beside", "under", "over", "past",
    "before", "after", "beyond", "above", "below", "between us and", "out of", "up to",
    "because of",
)  # fmt: skip
STARTS = (
    "And", "But", "So", "Or", "If", "As", "When", "Since", "Though", "Because", "Until", "While",
    "Once", "And if", "But when", "And so", "As if", "Even if", "As soon as", "Now that", "In case",
    "Nor did we know that", "It is as if", "It was when", "That was before", "This is how",
    "There was a time when", "What with the fact that", "Had they known that", "Was it true that",
)  # fmt: skip
TAGS = (
    "isn't it", "do you", "aren't they", "was he", "didn't she", "can we", "haven't you", "is it",
    "won't it", "could they", "am I", "would you", "shall we", "has he", "weren't we", "does it",
)  # fmt: skip
ENDS = (".", ".", "!", "?")
ADJECTIVES = ("old", "big", "small", "fast", "tall", "cold", "dark", "loud", "soft", "short", "new")


class TalkLines:
    """`names` are words that are used as names beside those of the templates."""

    def __init__(self, names: list[str], rng: random.Random) -> None:
        self._rng, self._names = rng, names
        makers: list[tuple[Callable[[], str], int]] = [
            (self._interjection, 20), (self._short, 14), (self._quote, 18),
            (self._function_words, 30), (self._letters, 12), (self._vowel_letters, 8),
            (self._handle, 14),
        ]  # fmt: skip
        self._makers, self._weights = zip(*makers, strict=True)

    def line(self) -> str:
        text = self._rng.choices(self._makers, self._weights)[0]()
        return text[0].upper() + text[1:]

    def _pick(self, *options: str) -> str:
        return self._rng.choice(options)

    def _name(self) -> str:
        return self._rng.choice(FIRST if self._rng.random() < 0.7 else self._names)

    def _surname(self) -> str:
        return self._rng.choice(LAST if self._rng.random() < 0.7 else self._names)

    def _task(self) -> str:
        return f"{self._rng.choice(VERBS)} {self._rng.choice(OBJECTS)}"

    def _interjection(self) -> str:
        rng = self._rng
        one, two = rng.choice(MISREAD if rng.random() < 0.5 else INTERJECTIONS), rng.choice(MISREAD)
        clause, end = rng.choice(CLAUSES), rng.choice(ENDS)
        return self._pick(
            f"{one}{end}",
            f"{one}, {clause}.",
            f"{one}! {clause.capitalize()}.",
            f"{one}... {clause}.",
            f"{one}, {two.lower()}{end}",
            f"{one}! {two}{end}",
            f"{clause.capitalize()}. {one}{end}",
            f'"{one}," {rng.choice(SAID)} {self._name()}.',
            f'"{one}!" {self._name()} {rng.choice(SAID)}. "{clause.capitalize()}."',
            f"{one}, {self._name()}, {clause}.",
            f"{one}, can you {self._task()}?",
        )

    def _short(self) -> str:
        """Single words and very short sentences, alone and in rows."""
        rng, (one, two, three) = self._rng, self._rng.sample(WORDS, 3)
        some, other = rng.sample(SHORT, 2)
        end, end_too = rng.choices(ENDS, k=2)
        return self._pick(
            f"{one}{end}",
            f"{one}{end}",
            f"{some}{end}",
            f"{some}{end}",
            f"{one}{end} {two}{end_too}",
            f"{one}. {two}. {three}.",
            f"{one}, {two.lower()}, {three.lower()}{end}",
            f"{some}{end} {other}{end_too}",
            f"{one}. {some}{end}",
            f"{some}{end} {rng.choice(CLAUSES).capitalize()}.",
            f"{some}, {self._name()}{end}",
            f"{self._name()}{end}",
            f"{self._name()}? {some}{end}",
        )

    def _quote(self) -> str:
        rng = self._rng
        said, who, answer = rng.choice(SAID), self._name(), rng.choice(ANSWERS)
        clause = rng.choice(CLAUSES)
        return self._pick(
            f'"{answer}," {said} {who}.',
            f'"{answer}!" {who} {said}.',
            f'"{answer}," {who} {said}, "{clause}."',
            f'"Did you {self._task()}?" "{answer}."',
            f'"Can we {self._task()}?" {who} {said}. "{answer}," said {self._name()}.',
            f'{who} {said} "{answer.lower()}" and left.',
            f'{who} {said}, "{answer}."',
            f'When {who} asked, {self._name()} said "{answer.lower()}".',
            f'"{clause.capitalize()}," {said} {who}. "{answer}?"',
            f'The word "{answer.split()[0].lower()}" was all that {who} {said}.',
            f"Is that a {answer.lower()}?",
            f"{answer}, {who} {said}.",
        )

    def _function_words(self) -> str:
        rng = self._rng
        who, tail, place = rng.choice(PRONOUNS), rng.choice(TAILS), rng.choice(PLACES)
        there, tag = f"{rng.choice(PREPOSITIONS)} {place}", rng.choice(TAGS)
        clause, other = rng.sample(CLAUSES, 2)
        adjective, thing = rng.choice(ADJECTIVES), rng.choice(THINGS)
        return self._pick(
            f"{who}{rng.choice(MODALS)} {self._task()} {tail}.",
            f"{who}{rng.choice(MODALS)} {self._task()}, {tag}?",
            f"{rng.choice(BEEN).format(who)} {there}.",
            f"{rng.choice(STARTS)} {clause}, {other}.",
            f"{there}, {clause}.",
            f"{clause}, and {who}{rng.choice(MODALS)} be {there} {tail}.",
            f"it is as {adjective} as the {thing} {there}.",
            f"the {thing} {there} were {adjective}er than those of his.",
            f"there were a few of them {there}, {tag}?",
            f"of all the {thing}, it was the {adjective} one that {who} had.",
            f"that is what {who} did to {place}.",
            f"what was it that {who} had {there}?",
            f"to {rng.choice(VERBS)} it or not to, that is up to {self._name()}.",
            f"it was {who} who had to {self._task()}, as it was {tail}.",
        )

    def _sequence(self, low: int = 2, high: int = 6) -> list[str]:
        return self._rng.choices(LETTERS, k=self._rng.randint(low, high))

    def _letters(self) -> str:
        rng, some = self._rng, self._sequence()
        name = self._name()
        spelled = rng.choice((" ", ", ", "-")).join(name.upper())
        joined = rng.choice((" ", ", ", "-", ".")).join(some)
        return self._pick(
            f"{joined}.",
            f"the letters are {', '.join(some[:-1])} and {some[-1]}.",
            f"it is spelled {spelled}.",
            f"{name} is written {spelled}, {rng.choice(TAGS)}?",
            f"my initials are {'.'.join(some[:3])}.",
            f"press {some[0]}, then {some[1]}, then {rng.choice(LETTERS)}.",
            f"is that {some[0]} as in {self._name()} or {some[1]} as in {self._name()}?",
            f"the {''.join(some)} file goes to the {''.join(self._sequence(2, 4))}.",
            f"plan {some[0]}, plan {some[1]} and group {rng.choice(LETTERS)}.",
            f"from {some[0]} to {some[1]}, and from {rng.choice(LETTERS)} to Z.",
            f"the {''.join(some[:3])}'s {rng.choice(THINGS)} are in {rng.choice(CITIES)}.",
        )

    def _vowel_letters(self) -> str:
        """Letters beside A, and other letters that are also words or sounds."""
        rng = self._rng
        own = "".join(rng.sample([*rng.choices(LETTERS, k=2), rng.choice(VOWEL_LETTERS), "A"], 4))
        one = rng.choice(WITH_A) if rng.random() < 0.5 else own[: rng.randint(2, 4)]
        two, number = rng.choice(WITH_A), rng.randint(2, 12)
        return self._pick(
            f"{one}.",
            f"the {one} {rng.choice(THINGS)} are in {rng.choice(CITIES)}.",
            f"is it {one} or {two}?",
            f"{one}, {two} and {own}.",
            f"what does {one} stand for?",
            f"{self._name()} uses {one} to {self._task()}.",
            f"{one} and {two} are not the same.",
            f"it takes {number} {one} batteries.",
            f"{self._name()} said {one}, not {two}.",
            f"ask the {one}.",
            f"{rng.choice(CLAUSES)}, says the {one}.",
            f"{one} {number} and {two} {number + 1}.",
        )

    def _handle(self) -> str:
        rng, first, last = self._rng, self._name(), self._surname()
        link = rng.choice(("", "_", "_", ""))
        number = rng.choice(("", "", str(rng.randint(1, 99))))
        handle = f"@{first.lower()}{link}{last.lower() if link else last}{number}"
        return self._pick(
            f"{handle} wrote: {rng.choice(CLAUSES)}.",
            f"thanks to {handle} and @{self._name().lower()}!",
            f"follow {handle} for more.",
            f"{first} {last}, {rng.choice(CLAUSES)}.",
            f"{first} {last} and {self._name()} {rng.choice(LAST)} live in {rng.choice(CITIES)}.",
            f"is {first} {last} there, or {self._name()}?",
            f"{first}, this is {last}. {last}, this is {first}.",
            f"ask {handle}, not {first}.",
            f"{handle}, {rng.choice(CLAUSES)}.",
            f"a message from {handle}: {rng.choice(SHORT)}!",
        )
