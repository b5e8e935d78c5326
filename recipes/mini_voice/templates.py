"""Template lines that the corpus lacks: numbers, dates, money, letters, names, lists, lengths."""

from __future__ import annotations

import random
from collections.abc import Callable

MONTHS = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
]
DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
FIRST = [
    "Alice",
    "Ben",
    "Carla",
    "David",
    "Emma",
    "Felix",
    "Grace",
    "Henry",
    "Isabel",
    "Jack",
    "Karen",
    "Liam",
    "Maria",
    "Noah",
    "Olivia",
    "Peter",
    "Rachel",
    "Samuel",
    "Teresa",
    "Victor",
    "Wendy",
    "Yusuf",
    "Zoe",
    "Anna",
    "Carlos",
    "Diana",
    "Ethan",
    "Fiona",
    "George",
    "Hannah",
    "Ivan",
    "Julia",
    "Kevin",
    "Laura",
    "Michael",
    "Nina",
    "Oscar",
    "Paula",
    "Robert",
    "Sophie",
    "Thomas",
    "Ursula",
    "Vincent",
    "William",
]
LAST = [
    "Smith",
    "Johnson",
    "Brown",
    "Taylor",
    "Miller",
    "Wilson",
    "Moore",
    "Anderson",
    "Jackson",
    "White",
    "Harris",
    "Martin",
    "Thompson",
    "Garcia",
    "Martinez",
    "Robinson",
    "Clark",
    "Lewis",
    "Lee",
    "Walker",
    "Hall",
    "Allen",
    "Young",
    "King",
    "Wright",
    "Lopez",
    "Hill",
    "Scott",
    "Green",
    "Adams",
    "Baker",
    "Nelson",
    "Carter",
    "Mitchell",
    "Perez",
    "Roberts",
    "Turner",
    "Phillips",
    "Campbell",
    "Parker",
    "Evans",
]
CITIES = [
    "London",
    "Paris",
    "Berlin",
    "Madrid",
    "Rome",
    "Tokyo",
    "Chicago",
    "Boston",
    "Seattle",
    "Denver",
    "Austin",
    "Toronto",
    "Sydney",
    "Dublin",
    "Vienna",
    "Prague",
    "Oslo",
    "Lisbon",
    "Athens",
    "Cairo",
    "Delhi",
    "Shanghai",
    "Singapore",
    "Seoul",
    "Lima",
    "Havana",
]
THINGS = [
    "apples",
    "books",
    "chairs",
    "tickets",
    "boxes",
    "letters",
    "bottles",
    "pages",
    "miles",
    "people",
    "cars",
    "houses",
    "students",
    "stamps",
    "photos",
    "coins",
    "windows",
    "doors",
    "trees",
    "birds",
    "minutes",
    "hours",
    "days",
    "weeks",
    "dogs",
    "cats",
    "songs",
    "cups",
]
FOODS = [
    "bread",
    "milk",
    "eggs",
    "butter",
    "cheese",
    "rice",
    "pasta",
    "tomatoes",
    "onions",
    "garlic",
    "chicken",
    "fish",
    "apples",
    "oranges",
    "bananas",
    "coffee",
    "tea",
    "sugar",
    "salt",
    "pepper",
    "honey",
    "yogurt",
    "carrots",
    "potatoes",
    "spinach",
    "beans",
    "mushrooms",
]
ONE_WORD = [
    "Yes",
    "No",
    "Maybe",
    "Sure",
    "Okay",
    "Thanks",
    "Please",
    "Sorry",
    "Hello",
    "Goodbye",
    "Welcome",
    "Stop",
    "Go",
    "Wait",
    "Right",
    "Left",
    "Never",
    "Always",
    "Sometimes",
    "Tomorrow",
    "Today",
    "Yesterday",
    "Now",
    "Later",
    "Great",
    "Perfect",
    "Nice",
    "Fine",
    "Good",
    "Bad",
    "True",
    "False",
    "Correct",
    "Wrong",
    "Ready",
    "Done",
    "Next",
    "Again",
    "Why",
    "What",
    "Who",
    "Where",
    "When",
    "How",
    "Really",
    "Exactly",
    "Absolutely",
    "Certainly",
    "Nothing",
    "Everything",
    "Something",
    "Nobody",
    "Everyone",
    "Morning",
    "Evening",
    "Red",
    "Blue",
]
ACRONYMS = [
    "BBC",
    "FBI",
    "CIA",
    "USA",
    "UK",
    "EU",
    "UN",
    "GPS",
    "CPU",
    "GPU",
    "USB",
    "PDF",
    "HTML",
    "TV",
    "DVD",
    "CEO",
    "CFO",
    "PhD",
    "IBM",
    "MIT",
    "ATM",
    "DNA",
    "FAQ",
]
TITLES = ["Dr.", "Mr.", "Mrs.", "Ms.", "Prof."]
VERBS = [
    "find",
    "open",
    "close",
    "check",
    "cancel",
    "book",
    "call",
    "send",
    "read",
    "play",
    "order",
    "change",
    "move",
    "start",
    "finish",
]
OBJECTS = [
    "the report",
    "my appointment",
    "the front door",
    "a table for two",
    "the meeting",
    "the last message",
    "the next train",
    "your ticket",
    "the results",
    "a taxi",
    "the weather forecast",
    "the music",
    "the list",
    "the window",
    "the first chapter",
    "a new password",
    "the kitchen light",
    "the invoice",
]
CLAUSES = [
    "the rain stopped before noon",
    "we walked along the river",
    "nobody had expected the answer",
    "the old clock on the wall struck three",
    "she opened the letter with great care",
    "the children were playing in the garden",
    "he could not remember where he had put the keys",
    "the train was already leaving the station",
    "they agreed to meet again the next morning",
    "the soup was still warm on the stove",
    "a small boat drifted past the bridge",
    "the museum had been closed for repairs",
    "everyone waited for the music to begin",
    "the wind carried the smell of the sea",
    "I read the same page twice",
    "the doctor told him to rest for a week",
    "the shop on the corner sells fresh bread",
    "our neighbours are moving to another city",
    "the final result surprised the whole team",
    "you should always save your work before you leave",
    "the road winds slowly up the hill",
    "the engineers tested the new engine for several hours",
    "a letter arrived from the bank",
    "the lights went out in the whole street",
    "my sister plays the violin every evening",
]
JOINS = (
    ", and ",
    ", but ",
    " because ",
    " while ",
    ", so ",
    " although ",
    "; ",
    " when ",
    ", and then ",
)


def template_lines(count: int, seed: int = 11) -> list[str]:
    """`count` different lines, the same for the same seed."""
    rng = random.Random(seed)
    makers: list[tuple[Callable[[random.Random], str], int]] = [
        (_number, 16), (_date, 12), (_time, 9), (_money, 10), (_letters, 8), (_acronym, 5),
        (_name, 9), (_question, 8), (_shopping, 7), (_one_word, 3), (_long, 12), (_phone, 3),
        (_measure, 5), (_short, 6),
    ]  # fmt: skip
    functions, weights = zip(*makers, strict=True)
    found: dict[str, None] = {}
    for _ in range(60 * count):
        if len(found) >= count:
            break
        found[rng.choices(functions, weights)[0](rng)] = None
    return list(found)


def _pick(rng: random.Random, *options: str) -> str:
    return rng.choice(options)


def _integer(rng: random.Random) -> str:
    top = rng.choice([20, 100, 100, 1000, 1000, 10_000, 100_000, 1_000_000])
    value = rng.randint(0, top)
    return f"{value:,}" if value >= 10_000 or rng.random() < 0.5 else str(value)


def _ordinal(value: int) -> str:
    suffix = "th" if 10 <= value % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(value % 10, "th")
    return f"{value}{suffix}"


def _number(rng: random.Random) -> str:
    n, thing = _integer(rng), rng.choice(THINGS)
    return _pick(
        rng,
        f"There are {n} {thing} in the building.",
        f"We counted {n} {thing}.",
        f"She bought {n} {thing} last year.",
        f"The answer is {n}.",
        f"Turn to page {rng.randint(1, 900)}.",
        f"About {rng.randint(1, 99)}.{rng.randint(1, 9)} percent of the {thing} were lost.",
        f"Nearly {rng.randint(1, 100)}% agreed with the plan.",
        f"He finished in {_ordinal(rng.randint(1, 60))} place.",
        f"{rng.randint(2, 90)} plus {rng.randint(2, 90)} is {rng.randint(4, 180)}.",
        f"Flight {rng.randint(100, 9999)} leaves from gate {rng.randint(1, 60)}.",
        f"Room {rng.randint(100, 999)} is on the {_ordinal(rng.randint(2, 40))} floor.",
        f"The score was {rng.randint(0, 9)} to {rng.randint(0, 9)}.",
        f"{n} {thing}.",
    )


def _date(rng: random.Random) -> str:
    month, day, year = rng.choice(MONTHS), rng.randint(1, 28), rng.randint(1700, 2035)
    return _pick(
        rng,
        f"She was born on {month} {day}, {year}.",
        f"The meeting is on {rng.choice(DAYS)}, {month} {_ordinal(day)}.",
        f"It happened in {year}.",
        f"From {year} to {year + rng.randint(1, 9)} he lived in {rng.choice(CITIES)}.",
        f"The letter is dated {day} {month} {year}.",
        f"On the {_ordinal(day)} of {month} the shop will be closed.",
        f"{month} {_ordinal(day)}, {year}.",
        f"See you on {rng.choice(DAYS)}!",
    )


def _time(rng: random.Random) -> str:
    hour, minute = rng.randint(1, 12), rng.choice([0, 5, 10, 15, 20, 25, 30, 40, 45, 50, 55])
    clock = f"{hour}:{minute:02d}"
    half = rng.choice(["a.m.", "p.m.", "am", "pm", "AM", "PM"])
    return _pick(
        rng,
        f"The train to {rng.choice(CITIES)} leaves at {clock} {half}",
        f"Please wake me at {clock}.",
        f"It is {clock} in {rng.choice(CITIES)}.",
        f"We open at {rng.randint(7, 11)} o'clock.",
        f"Dinner is at {hour} {half} on {rng.choice(DAYS)}.",
        f"Set a timer for {rng.randint(2, 59)} minutes.",
        f"It took {rng.randint(1, 23)} hours and {rng.randint(1, 59)} minutes.",
    )


def _money(rng: random.Random) -> str:
    sign = rng.choice(["$", "$", "$", "£", "€"])
    price = (
        f"{sign}{rng.randint(1, 300)}.{rng.choice([0, 25, 50, 75, 95, 99, rng.randint(1, 98)]):02d}"
    )
    whole = f"{sign}{rng.randint(1, 9999):,}"
    return _pick(
        rng,
        f"It costs {price}.",
        f"She paid {whole} for the {rng.choice(THINGS)}.",
        f"Your total is {price}.",
        f"The company earned {sign}{rng.randint(1, 90)} million in {rng.randint(1990, 2030)}.",
        f"A ticket is only {whole}.",
        f"Can you lend me {sign}{rng.randint(2, 90)}?",
    )


def _letters(rng: random.Random) -> str:
    letters = [rng.choice("ABCDEFGHIJKLMNOPQRSTUVWXYZ") for _ in range(rng.randint(2, 6))]
    name = rng.choice(FIRST + CITIES)
    return _pick(
        rng,
        f"My name is spelled {', '.join(name.upper())}.",
        f"The code is {', '.join(letters)}.",
        f"The letters are {' '.join(letters)}.",
        f"Type {letters[0]}, then {letters[1]}.",
        f"Plan {letters[0]} is better than plan {letters[1]}.",
        f"{name}: {', '.join(name.upper())}.",
        f"Seat {rng.randint(1, 40)}{rng.choice('ABCDEF')}, please.",
    )


def _acronym(rng: random.Random) -> str:
    one, two = rng.sample(ACRONYMS, 2)
    return _pick(
        rng,
        f"The {one} published a report about the {two}.",
        f"He works for the {one}.",
        f"What does {one} stand for?",
        f"Bring fruit, e.g. {rng.choice(FOODS)} or {rng.choice(FOODS)}.",
        f"{rng.choice(LAST)} and Co. Ltd. moved to {rng.randint(2, 200)} {rng.choice(LAST)} St.",
        f"{rng.choice(FIRST)} {rng.choice(LAST)} Jr. lives on {rng.choice(LAST)} Ave.",
        f"It is the {one} vs. the {two}.",
    )


def _name(rng: random.Random) -> str:
    first, last, other = rng.choice(FIRST), rng.choice(LAST), rng.choice(FIRST)
    city, title = rng.choice(CITIES), rng.choice(TITLES)
    return _pick(
        rng,
        f"{title} {last} will see you now.",
        f"{first} {last} and {other} met in {city}.",
        f"Have you met {first} {last}?",
        f"This is {first} from {city}.",
        f"{first}, {other} and {rng.choice(FIRST)} are waiting for {title} {last}.",
        f"My name is {first}.",
        f"Hello {first}, it's {other}!",
        f"{first}'s brother moved from {city} to {rng.choice(CITIES)}.",
    )


def _question(rng: random.Random) -> str:
    verb, thing = rng.choice(VERBS), rng.choice(OBJECTS)
    return _pick(
        rng,
        f"Could you {verb} {thing}?",
        f"Why did you {verb} {thing}?",
        f"When should I {verb} {thing}?",
        f"Do you want me to {verb} {thing} or not?",
        f"Who wanted to {verb} {thing} on {rng.choice(DAYS)}?",
        f"How do I {verb} {thing}?",
        f"Please {verb} {thing}.",
        f"Would {rng.choice(FIRST)} like to {verb} {thing}?",
    )


def _shopping(rng: random.Random) -> str:
    items = rng.sample(FOODS, rng.randint(3, 7))
    listed = ", ".join(items[:-1])
    return _pick(
        rng,
        f"We need {listed} and {items[-1]}.",
        f"Buy {listed}, and {items[-1]}.",
        f"The list: {listed}, {items[-1]}.",
        f"First {items[0]}, then {items[1]}, and finally {items[2]}.",
        f"{items[0].capitalize()}, {items[1]} or {items[2]}?",
    )


def _one_word(rng: random.Random) -> str:
    return rng.choice(ONE_WORD) + rng.choice([".", ".", "!", "?", ""])


def _short(rng: random.Random) -> str:
    one, two = rng.choice(ONE_WORD), rng.choice(ONE_WORD).lower()
    return _pick(
        rng,
        f"{one}, {two}.",
        f"{one}, {rng.choice(FIRST)}.",
        f"{one}, thank you.",
        f"In {rng.choice(CITIES)}.",
        f"With {rng.choice(FOODS)}, please.",
        f"{rng.choice(FIRST)} {rng.choice(LAST)}.",
        f"{one} {two}!",
    )


def _phone(rng: random.Random) -> str:
    digits = [str(rng.randint(0, 9)) for _ in range(7)]
    return _pick(
        rng,
        f"Call {' '.join(digits)}.",
        f"The number is {''.join(digits[:3])}-{''.join(digits[3:])}.",
        f"Your code is {', '.join(digits[:4])}.",
    )


def _measure(rng: random.Random) -> str:
    n = rng.randint(2, 900)
    return _pick(
        rng,
        f"The bridge is {n} meters long.",
        f"It weighs {n}.{rng.randint(1, 9)} kilograms.",
        f"The road goes on for {n} km.",
        f"It is {rng.randint(-20, 40)} degrees in {rng.choice(CITIES)}.",
        f"Add {rng.randint(2, 9)} cups of {rng.choice(FOODS)} and 1/2 cup of {rng.choice(FOODS)}.",
        f"He drove at {rng.randint(20, 160)} mph.",
        f"The box is {rng.randint(2, 90)} by {rng.randint(2, 90)} inches.",
    )


def _long(rng: random.Random) -> str:
    """15 to 60 words of joined clauses, sometimes in two sentences."""
    clauses = rng.sample(CLAUSES, rng.randint(2, 7))
    text = clauses[0][0].upper() + clauses[0][1:]
    for clause in clauses[1:]:
        if rng.random() < 0.2:
            text += ". " + clause[0].upper() + clause[1:]
        else:
            text += rng.choice(JOINS) + clause
    return " ".join(text.split()[:60]).rstrip(",;.") + "."
