"""Text: tokenizers, labelled texts, running text and masked tokens."""
