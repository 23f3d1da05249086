#!/usr/bin/env python3
"""The client of a published tutorial on serving a translation model with Triton: ids in, `generated_indices` out, and the
tokenizer beside the client.

The calls between the marks are the tutorial's own, in its order; only the address differs, the texts, and where the
tokenizer comes from: the model behind it knows number words, and its tokenizer is asked of the server.
"""

from typing import List, Tuple

import numpy as np
import tritonclient.http as httpclient

import checks

TEXTS = ["two thousand nine hundred and thirty-one", "seven"]
TRANSLATIONS = ["elfu mbili mia tisa thelathini na moja", "saba"]


class Tokenized:
    def __init__(self, input_ids, attention_mask):
        self.input_ids, self.attention_mask = input_ids, attention_mask


class ServedTokenizer:
    """The part of transformers' tokenizer that the tutorial uses, computed by the server's models."""

    def __init__(self, url):
        self.client = httpclient.InferenceServerClient(url=url)

    def __call__(self, text, padding, return_tensors):
        checks.expect_equal("arguments", (padding, return_tensors), (True, "np"))
        result = self.client.infer("tokenizer", [checks.tensor("TEXT", checks.texts(text))])
        return Tokenized(result.as_numpy("input_ids"), result.as_numpy("attention_mask"))

    def batch_decode(self, ids, skip_special_tokens):
        checks.expect_equal("skip_special_tokens", skip_special_tokens, True)
        result = self.client.infer("decode", [checks.tensor("generated_indices", ids)])
        return checks.utf8(result.as_numpy("translation"))


def tutorial(url, tokenizer, text):
    # --- as published ---
    client = httpclient.InferenceServerClient(url=url)

    input_ids = httpclient.InferInput("input_ids", shape=(-1,1) , datatype="TYPE_INT64",)
    attention_mask = httpclient.InferInput("attention_mask", shape=(-1,1) , datatype="TYPE_INT64",)

    outputs = httpclient.InferRequestedOutput("generated_indices", binary_data=False)

    def tokenize_text(tokenizer, text:str) -> Tuple[np.ndarray , np.ndarray]:
        tokenized_text = tokenizer(text, padding=True, return_tensors="np")
        return tokenized_text.input_ids, tokenized_text.attention_mask

    def generate_inference_input(input_ids: np.ndarray, attention_mask: np.ndarray) -> List[httpclient.InferInput]:
        inputs = []
        inputs.append(httpclient.InferInput("input_ids", input_ids.shape, "INT64"))
        inputs.append(httpclient.InferInput("attention_mask", attention_mask.shape, "INT64"))

        inputs[0].set_data_from_numpy(input_ids.astype(np.int64), binary_data=False)
        inputs[1].set_data_from_numpy(attention_mask.astype(np.int64), binary_data=False)
        return inputs

    input_ids, attention_mask = tokenize_text(tokenizer, text)

    inference_inputs = generate_inference_input(input_ids, attention_mask)

    results = client.infer(model_name="m2m100_translation_model", inputs=inference_inputs, outputs=[outputs])
    inference_output = results.as_numpy('generated_indices')

    decoded_output = tokenizer.batch_decode(inference_output, skip_special_tokens=True)
    # --- as published ---
    return inference_output, decoded_output


def check_tutorial(url):
    ids, texts = tutorial(url, ServedTokenizer(url), TEXTS)
    checks.expect_equal("dtype", ids.dtype, np.dtype(np.int64))
    checks.expect_equal("rows", ids.shape[0], len(TEXTS))
    checks.expect_equal("translations", texts, TRANSLATIONS)
    return f"ids of shape {ids.shape}: {texts}"


def main():
    url = checks.arguments(__doc__).url
    checks.run([("the tutorial's client", lambda: check_tutorial(url))])


if __name__ == "__main__":
    main()
