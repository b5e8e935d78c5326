"""Tests of the tokenizer with the released vocabulary, against tiktoken and transformers."""

from __future__ import annotations

import hashlib
import unicodedata
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import tiktoken
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.real_vocabulary import ADDED_IDS, Ranks, reference_encoding
from vivace.errors import CheckpointError, RequestError
from vivace.text.tokenizer import TextTokenizer

SENTENCES = {
    "chinese": [
        "今天天气真好，我们一起去公园散步吧！",
        "他说：“2024年3月15日，我买了一部iPhone，花了￥6,999.00。”",
        "《红楼梦》第1回，你读过了吗？——没有……",
        "这个API的QPS是1200，延迟只有35ms，太快了👍🏽！",
        "重要的事情说三遍：加油，加油，加油！！！\n第二行从这里开始。",
        "他姓𠮷，住在㐂寿路１２３号（全角）。",
    ],
    "english": [
        "Don't worry, it'll be fine; they've said they'd come, haven't they?",
        "I'M SURE WE'LL SEE THAT HE'S RIGHT, and you're not.",
        "On 4 July 1776, at 10:30 a.m., roughly 2,500,000 people -- or 3.5%? -- cheered.",
        '“Curly quotes,” she said, ‘and "straight" ones’ … it’s naïve café talk.',
        "'The door,' she said, 'MUST stay shut,' and 'll' is not a word.",
        "OpenAI's iPhone app and YouTube on my MacBook: see https://example.com/a_b?c=1#d 🙂",
        "  Two leading spaces,\ttabs,   runs of spaces and a trailing one ",
        "Windows\r\nline ends,\n\nblank lines\n \nand 東京 with Москва in one sentence.",
    ],
    "german": [
        "Die Straße über den Fluß führt nach Köln-Mülheim, nicht wahr?",
        "„Wie geht’s dir?“, fragte er – »Gut!«, sagte sie um 18:45 Uhr.",
        "Donaudampfschifffahrtsgesellschaftskapitän kostet 1.234,56 €.",
        "Ich hab's dir 3x gesagt: GROẞE Buchstaben, z. B. ÄÖÜ!",
        "Äpfel und Öl, aus zerlegten Zeichen: A\u0308pfel und O\u0308l.",
    ],
    "italian": [
        "L'altro giorno sono andato all'università: c'era un'amica.",
        "Perché no? È già mezzanotte, dev'essere così.",
        "«Ciao!», disse; poi pagò 12,50 € per 3 caffè.",
        "Dall'11 al 22 maggio 2025 l'hotel è al completo 😅.",
        "La citta\u0300 e\u0300 piu\u0300 bella di sera.",
    ],
    "portuguese": [
        "Não, a ação começa às 15h30 em São Paulo.",
        "“Você já comeu pão de queijo?” — perguntou a avó.",
        "O preço é R$ 1.999,90 (à vista) ou 12x de R$ 189,99!",
        "Coração, maçã, lingüiça e pingüim: ortografia antiga.",
        "A a\u0303o e o c\u0327 vêm de teclados diferentes 🇧🇷🇵🇹.",
    ],
    "spanish": [
        "¿Cómo estás? ¡Muy bien, gracias!",
        "El niño comió 3 piñas y 1/2 sandía el 21-09-2023.",
        "—¿Vienes? —No, «quizá» mañana —dijo él.",
        "Cuesta $1.500,75; o sea, ¡un 20 % más!",
        "El pingu\u0308ino y el nin\u0303o viven en Ma\u0301laga 🐧.",
    ],
    "japanese": [
        "今日はいい天気ですね。散歩に行きましょう！",
        "「東京タワー」の高さは333メートルです。",
        "すみません、コーヒーを2つ、あとＷｉ－Ｆｉのパスワードも…。",
        "２０２５年１０月２０日、①②③と½と٣と五。",
        "え〜っと、ｶﾀｶﾅとカタカナ、ひらがなと漢字と emoji 🎌。",
        "か\u3099ぎく\u3099けこ\u3099とは\u309aぱ（結合文字）",
    ],
    "korean": [
        "안녕하세요, 오늘 날씨가 정말 좋네요!",
        "“내일 3시에 만나요.”라고 그는 말했다.",
        "가격은 12,000원이고, 할인율은 15.5%입니다.",
        "ㅋㅋㅋ 진짜? GPU가 2개나 있어?? 😂",
        unicodedata.normalize("NFD", "한글은 조합형으로도 쓸 수 있다."),
    ],
    "french": [
        "L'été dernier, j'ai vu l'aéroport d'Orly ; c'était l'heure !",
        "« Où es-tu ? » demanda-t-elle à 20 h 15.",
        "Aujourd'hui, grand'mère a payé 1 234,56 € pour l'œuvre.",
        "Ça coûte combien ? Qu'est-ce qu'il y a, Noël ou Pâques ?",
        "E\u0301cole, fore\u0302t et c\u0327a : des lettres décomposées 🥐.",
    ],
    "russian": [
        "Привет! Как дела? Всё хорошо, спасибо.",
        "«Война и мир» — роман Л. Н. Толстого (1869 г.).",
        "Цена: 2 499,99 ₽ за 5 шт., скидка 10%.",
        "Съешь же ещё этих мягких французских булок, да выпей чаю №3.",
        "И\u0306од и е\u0308лка, 2-й этаж, МКАД и Wi-Fi 🪆.",
    ],
}
ALL_SENTENCES = [sentence for sentences in SENTENCES.values() for sentence in sentences]
# Characters that may join a neighbour: boundaries matter more than words.
FRAGMENTS = ["iPhone", "'s", "'LL", "'The", "\r\n", "\n/", "  ", "\u3000", "\u0301", "\u0323", "9"]
# Python and `tokenizers` order and compose the newest combining marks differently.
CHARACTERS = st.characters(exclude_categories=("Cs", "Cn", "Mn", "Mc", "Me"))
TEXTS = st.lists(
    st.text(CHARACTERS) | st.sampled_from([*FRAGMENTS, *ADDED_IDS, *ALL_SENTENCES])
).map("".join)

# Ids of transformers 4.57.3 for these files, without and with fix_mistral_regex.
UPSTREAM_IDS = [
    ("iPhone YouTube LaTeX", [44740, 13370, 97913], [72, 6939, 1446, 11851, 4929, 6639, 55]),
    ("!\n/x", [4894, 10776], [4894, 14, 87]),
    ("'The end'", [17323, 383, 835, 6], [6, 785, 835, 6]),
    ("they'dance", [20069, 4172, 681], [20069, 4172, 681]),
    ("e\u0301 Hello 123", [963, 21927, 220, 16, 17, 18], [963, 21927, 220, 16, 17, 18]),
]

Pair = tuple[TextTokenizer, tiktoken.Encoding]


@pytest.fixture(scope="session")
def tokenizer(real_folder: Path) -> TextTokenizer:
    return TextTokenizer.from_folder(real_folder)


@pytest.fixture(scope="session")
def camel_case_tokenizer(real_folder: Path) -> TextTokenizer:
    return TextTokenizer.from_folder(real_folder, split_camel_case=True)


@pytest.fixture(scope="session", params=[False, True], ids=["qwen2", "camel_case"])
def pair(
    request: pytest.FixtureRequest,
    real_ranks: Ranks,
    tokenizer: TextTokenizer,
    camel_case_tokenizer: TextTokenizer,
) -> Pair:
    """Our tokenizer and tiktoken with the same pattern."""
    reference = reference_encoding(real_ranks, split_camel_case=request.param)
    return camel_case_tokenizer if request.param else tokenizer, reference


def test_derived_files_match_the_released_files(real_folder: Path) -> None:
    hashes = {
        name: hashlib.sha256((real_folder / name).read_bytes()).hexdigest()[:8]
        for name in ("vocab.json", "merges.txt")
    }
    assert hashes == {"vocab.json": "ca10d7e9", "merges.txt": "599bab54"}


@pytest.mark.parametrize("language", SENTENCES)
def test_sentences_get_the_ids_of_tiktoken(language: str, pair: Pair) -> None:
    ours, reference = pair
    for sentence in SENTENCES[language]:
        composed = unicodedata.normalize("NFC", sentence)
        assert ours.encode(sentence) == reference.encode_ordinary(composed)
        assert ours.decode(ours.encode(sentence)) == composed


@examples(300)
@given(text=TEXTS)
def test_any_text_gets_the_ids_of_tiktoken(pair: Pair, text: str) -> None:
    ours, reference = pair
    composed = unicodedata.normalize("NFC", text)
    assert ours.encode(text) == reference.encode_ordinary(composed)
    assert ours.decode(ours.encode(text)) == composed


@pytest.mark.parametrize(("text", "ids", "camel_case_ids"), UPSTREAM_IDS)
def test_both_patterns_give_the_ids_of_transformers(
    text: str,
    ids: list[int],
    camel_case_ids: list[int],
    tokenizer: TextTokenizer,
    camel_case_tokenizer: TextTokenizer,
) -> None:
    assert tokenizer.encode(text) == ids
    assert camel_case_tokenizer.encode(text) == camel_case_ids


@pytest.mark.parametrize("name", ["iPhone", "YouTube", "LinkedIn"])
def test_camel_case_name_is_one_token_unless_split(
    name: str, tokenizer: TextTokenizer, camel_case_tokenizer: TextTokenizer
) -> None:
    assert len(tokenizer.encode(name)) == 1
    assert len(camel_case_tokenizer.encode(name)) == 2


@pytest.mark.parametrize("name", ["OpenAI", "ChatGPT", "MacBook", "Hello"])
def test_name_without_a_token_has_the_same_ids_with_both_patterns(
    name: str, tokenizer: TextTokenizer, camel_case_tokenizer: TextTokenizer
) -> None:
    assert tokenizer.encode(name) == camel_case_tokenizer.encode(name)


def test_assembled_template_matches_the_template_encoded_whole(pair: Pair) -> None:
    ours, reference = pair
    end = [ours.special_id("<|im_end|>"), *ours.encode("\n")]
    role = ours.role_ids("assistant")
    for sentence in ALL_SENTENCES:
        template = f"<|im_start|>assistant\n{sentence}<|im_end|>\n<|im_start|>assistant\n"
        composed = unicodedata.normalize("NFC", template)
        whole = reference.encode(composed, allowed_special="all")
        assert role + ours.encode(sentence) + end + role == whole


def test_leading_newlines_are_separate_from_the_newline_of_the_role(
    tokenizer: TextTokenizer,
) -> None:
    apart = [*tokenizer.role_ids("assistant"), *tokenizer.encode("\n\nHi")]
    together = [tokenizer.special_id("<|im_start|>"), *tokenizer.encode("assistant\n\n\nHi")]
    assert apart == [151644, 77091, 198, 271, 13048]
    assert together == [151644, 77091, 1406, 13048]


@pytest.mark.parametrize("token", ADDED_IDS)
def test_special_token_inside_the_text_is_plain_text(token: str, pair: Pair) -> None:
    ours, reference = pair
    ids = ours.encode(f"Say {token} now.")
    assert ids == reference.encode_ordinary(f"Say {token} now.")
    assert max(ids) < ours.special_id("<|endoftext|>")


def test_special_tokens_have_their_released_ids(tokenizer: TextTokenizer) -> None:
    assert tokenizer.special_id("<|im_start|>") == 151644
    assert tokenizer.special_id("<|im_end|>") == 151645
    assert tokenizer.special_id("<tts_pad>") == 151671
    assert tokenizer.special_id("<|audio_pad|>") == 151675
    assert tokenizer.vocab_size == 151676


def test_unknown_special_token_is_named(tokenizer: TextTokenizer) -> None:
    with pytest.raises(CheckpointError, match="no added token '<tts_sing>'"):
        tokenizer.special_id("<tts_sing>")


def test_role_is_a_special_token_a_name_and_a_newline(tokenizer: TextTokenizer) -> None:
    assert tokenizer.role_ids("assistant") == [151644, 77091, 198]
    assert tokenizer.role_ids("user") == [151644, 872, 198]


def test_empty_text_has_no_ids(tokenizer: TextTokenizer) -> None:
    assert tokenizer.encode("") == []
    assert tokenizer.decode([]) == ""


def test_control_characters_are_kept(tokenizer: TextTokenizer) -> None:
    text = "a\x00b\x1b[0m\x7f\ufeff\u202e"
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_decode_names_special_tokens_and_marks_broken_characters(tokenizer: TextTokenizer) -> None:
    cat = tokenizer.encode("🪆")
    ids = [*tokenizer.role_ids("user"), *cat, tokenizer.special_id("<|im_end|>"), *cat[:1]]
    assert tokenizer.decode(ids) == "<|im_start|>user\n🪆<|im_end|>\ufffd"


@pytest.mark.parametrize("token_id", [-1, 151676, 2**40])
def test_decode_rejects_an_id_without_token(token_id: int, tokenizer: TextTokenizer) -> None:
    with pytest.raises(RequestError, match=f"no token has the id {token_id}; ids end at 151675"):
        tokenizer.decode([token_id])


@pytest.mark.parametrize("text", ["half \ud83d", "half \ude00 other", "half \ud83d\ude00"])
def test_lone_surrogate_raises_request_error(text: str, tokenizer: TextTokenizer) -> None:
    with pytest.raises(RequestError, match=r"character 5 of the text .*\(U\+D"):
        tokenizer.encode(text)


def test_threads_may_share_a_tokenizer(tokenizer: TextTokenizer) -> None:
    expected = [tokenizer.encode(sentence) for sentence in ALL_SENTENCES]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(tokenizer.encode, ALL_SENTENCES * 4)) == expected * 4
