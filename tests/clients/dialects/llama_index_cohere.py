"""LlamaIndex's reranker of Cohere."""

from checks import QUERY, TEXTS, expect_equal, expect_raised, run
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from llama_index.postprocessor.cohere_rerank import CohereRerank


def rerank(url, key, top_n):
    ranker = CohereRerank(model="reranker", api_key=key, top_n=top_n, base_url=f"{url}/cohere")
    return ranker.postprocess_nodes([NodeWithScore(node=TextNode(text=text)) for text in TEXTS], QueryBundle(QUERY))


def nodes_are_ranked(url, key):
    ranked = rerank(url, key, len(TEXTS))
    expect_equal("nodes", sorted(node.text for node in ranked), sorted(TEXTS))
    scores = [node.score for node in ranked]
    expect_equal("their order", scores, sorted(scores, reverse=True))
    expect_equal("the best", [node.text for node in rerank(url, key, 1)], [ranked[0].text])


def a_wrong_key_is_told(url, _):
    expect_raised("a wrong key", Exception, lambda: rerank(url, "wrong", 1), "401")


run(serving=[nodes_are_ranked, a_wrong_key_is_told], full=[], unready=[])
