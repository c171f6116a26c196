"""The pages for people: what they are made of, in English and in Chinese."""
