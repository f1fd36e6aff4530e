import numpy as np

from kimi.assets import TINY_K3
from kimi.lab.train import packing, samples


def test_rows_are_those_of_the_seeds(tokenizer):
    tokens, weights = samples.generated_rows(32, 40, TINY_K3, workers=1)
    assert tokens.shape == weights.shape == (32, 40)
    for seed in (0, 15):
        expected = packing.rows(seed, 2, tokenizer, length=40)
        assert (tokens[2 * seed : 2 * seed + 2] == expected[0]).all()
        assert (weights[2 * seed : 2 * seed + 2] == expected[1]).all()


def test_processes_change_nothing():
    alone = samples.conversation_prompts(17, TINY_K3, workers=1)
    assert len(alone) == 32
    assert samples.conversation_prompts(17, TINY_K3, workers=2) == alone


def test_mixed_prompts_come_from_both_sources():
    prose = np.arange(500, dtype=np.uint16)
    chats = [[9999, i] for i in range(300)]
    prompts = samples.mixed_prompts(300, chats, prose, 0.6)
    spoken = [p for p in prompts if p[0] == 9999]
    assert 150 < len(spoken) < 210 and len(prompts) == 300
    for prompt in prompts:
        if prompt[0] != 9999:
            assert 12 <= len(prompt) <= 96
            assert prompt == list(range(prompt[0], prompt[0] + len(prompt)))
    assert prompts == samples.mixed_prompts(300, chats, prose, 0.6)


def test_padded_cuts_and_fills():
    ids, lengths = samples.padded([[1], [1, 2, 3, 4]], 3, 7)
    assert ids.tolist() == [[1, 7, 7], [1, 2, 3]] and lengths.tolist() == [1, 3]
