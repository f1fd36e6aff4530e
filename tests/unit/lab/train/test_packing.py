import hashlib

import numpy as np

from kimi.lab.train import packing
from kimi.text.tokenizer import Tokenizer


def test_rows_are_frozen(tokenizer: Tokenizer):
    tokens, weights = packing.rows(5, 8, tokenizer)
    assert tokens.shape == weights.shape == (8, packing.ROW_TOKENS)
    assert (tokens.dtype, weights.dtype) == (np.uint16, np.uint8)
    digests = [
        hashlib.sha256(x.tobytes()).hexdigest()[:16] for x in (tokens.astype("<u2"), weights)
    ]
    assert digests == ["d68e4bca8fe12b13", "d876b840d36ea63a"]


def test_weights_mark_prompts(tokenizer: Tokenizer):
    tokens, weights = packing.rows(6, 20, tokenizer, length=300, prompt_weight=0.5)
    assert set(np.unique(weights)) == {127, packing.FULL_WEIGHT}
    special = tokenizer.special
    ends = np.isin(tokens, [special.eos])
    assert ends.any() and (weights[ends] == packing.FULL_WEIGHT).all()
    # A conversation opens with a prompt, and whatever opens a row opens a document.
    opens_conversation = tokens[:, 0] == special.open
    assert opens_conversation.any() and not opens_conversation.all()
    assert ((weights[:, 0] == 127) == opens_conversation).all()


def test_prompt_weight_changes_no_token(tokenizer: Tokenizer):
    one, _ = packing.rows(9, 3, tokenizer, length=64)
    two, weights = packing.rows(9, 3, tokenizer, length=64, prompt_weight=1.0)
    assert (one == two).all()
    assert (weights == packing.FULL_WEIGHT).all()


def test_split_rows_cuts_a_text_and_drops_the_rest():
    ids = np.arange(17, dtype=np.uint16)
    assert packing.split_rows(ids, 5).tolist() == np.arange(15).reshape(3, 5).tolist()
    assert packing.split_rows(ids, 5, 2).tolist() == np.arange(10).reshape(2, 5).tolist()
    assert packing.split_rows(ids, 18).shape == (0, 18)
