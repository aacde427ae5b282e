"""Two policies of one's own. Try the first beside a built-in one, the second with --victim:

kvtop bench -w poisson-shared-prefix --executor null -o results/mine -p fcfs -p docs/examples/my_policy.py:Shortest
"""

PARAMS = {"patience_steps": 200}


class Shortest:
    """fewest tokens asked for first, but nobody waits longer than patience_steps for that"""

    def __call__(self, seq, context):
        patience = context.params["patience_steps"]
        waited = context.step - seq.wait_since_step
        return (0 if waited >= patience else 1, seq.num_prompt + seq.params.max_tokens)


def short_prompts_first(seq, context):
    """a victim policy: prompts of up to 1,000 tokens before longer ones, then whoever holds the most blocks"""
    return (seq.num_prompt <= 1000, seq.num_held)
