"""What `auto_complete_config` may change of a model's configuration."""

import json

INPUT = {"name": True, "data_type": True, "dims": True, "optional": False}
OUTPUT = {"name": True, "data_type": True, "dims": True}


class ModelConfig:
    """A model's configuration, to be completed."""

    def __init__(self, model_config):
        self._model_config = json.loads(model_config)

    def as_dict(self):
        """The configuration, as config.pbtxt names its fields."""
        return self._model_config

    def _refuse(self, what):
        raise ValueError(f"model '{self._model_config['name']}': auto_complete_config {what}")

    def set_max_batch_size(self, max_batch_size):
        """Sets the largest batch, which must not be smaller than the one that is configured."""
        configured = self._model_config["max_batch_size"]
        if configured > max_batch_size:
            self._refuse(f"sets max_batch_size to {max_batch_size}, but the configuration has {configured}")
        self._model_config["max_batch_size"] = max_batch_size

    def set_dynamic_batching(self):
        """Turns dynamic batching on, where the configuration names no scheduler."""
        for scheduler in ("sequence_batching", "ensemble_scheduling"):
            if scheduler in self._model_config:
                self._refuse(f"sets dynamic_batching, but the configuration has {scheduler}")
        self._model_config.setdefault("dynamic_batching", {})

    def set_model_transaction_policy(self, transaction_policy_dict):
        """Says whether the model is decoupled, which must not differ from what is configured."""
        for key in transaction_policy_dict:
            if key != "decoupled":
                self._refuse(f"sets '{key}' in the transaction policy, expected 'decoupled' alone")
        if "decoupled" not in transaction_policy_dict:
            return
        decoupled = transaction_policy_dict["decoupled"]
        configured = self._model_config.get("model_transaction_policy")
        if configured is not None and configured.get("decoupled", False) != decoupled:
            self._refuse(f"sets decoupled to {decoupled}, but the configuration has {configured['decoupled']}")
        self._model_config["model_transaction_policy"] = {"decoupled": decoupled}

    def add_input(self, input):
        """Declares an input, or completes one of its name."""
        self._add("input", input, INPUT)

    def add_output(self, output):
        """Declares an output, or completes one of its name."""
        self._add("output", output, OUTPUT)

    def _add(self, kind, tensor, properties):
        name = tensor.get("name", "")
        for key in tensor:
            if key not in properties:
                self._refuse(f"gives {kind} '{name}' the property '{key}', expected {', '.join(properties)}")
        for key, needed in properties.items():
            if needed and key not in tensor:
                self._refuse(f"gives {kind} '{name}' no '{key}'")
        declared = self._model_config.setdefault(kind, [])
        for known in declared:
            if known["name"] == name:
                for key in tensor:
                    has = known.get(key)
                    if has not in (None, "TYPE_INVALID", []) and has != tensor[key]:
                        self._refuse(f"gives {kind} '{name}' {key} {tensor[key]}, but the configuration has {has}")
                known.update(tensor)
                return
        declared.append(dict(tensor))
