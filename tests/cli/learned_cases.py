"""Learning shows in a model's generated text and in its validation loss."""
import json

from cli_case import END_OF_DOCUMENT, CliCase, tiny_config, write_tokens


class Learned(CliCase):
    LETTERS = "abcdefghi"  # nine: samples of 16 tokens then begin with each of them

    def setUp(self):
        super().setUp()
        write_tokens(self.path("corpus"), [END_OF_DOCUMENT] + list((self.LETTERS * 300).encode()))
        write_tokens(self.path("other"), [END_OF_DOCUMENT] + list((self.LETTERS[::-1] * 300).encode()))
        self.config = tiny_config(model={"hidden_size": 32}, optimizer={"lr": 0.01}, run={"steps": 60})

    def validation_loss(self, source, out):
        config = json.loads(json.dumps(self.config))
        config["data"]["validation"] = [{"path": source}]
        config["run"]["out"] = out
        self.succeed("train", self.write_config(config))
        records = [json.loads(line) for line in (self.path(out) / "metrics.jsonl").read_text().splitlines()]
        return [record["validation_loss"] for record in records if "validation_loss" in record][-1]

    def test_greedy_text_goes_on_with_the_pattern(self):
        self.succeed("train", self.write_config(self.config))
        text = self.succeed("generate", "--checkpoint", "out", "--prompt", "abcdef", "--tokens", 24, "--temperature", 0)
        self.assertEqual(text.rstrip("\n"), (self.LETTERS * 4)[:30])

    def test_validation_reads_its_own_data(self):
        self.assertLess(self.validation_loss("corpus", "same"), 0.5)
        self.assertGreater(self.validation_loss("other", "reversed"), 3)
