"""Small chat templates of our own, one in the manner of each dialect: what it writes of tools, calls and results."""

_TURN = "{% for m in messages %}{% if m.tool_calls %}{{ m.content }}"
_END = "{% else %}<{{ m.role }}>{{ m.content }}{% endif %}{% endfor %}"
_CALLS = "{% for call in m.tool_calls %}{% set f = call.function %}"
_TOOLS = "{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}"


def _template(call: str, before: str = "", after: str = "", end: str = _END) -> str:
    return f"{_TOOLS}{_TURN}{before}{_CALLS}{call}{{% endfor %}}{after}{end}"


TEMPLATES = {
    "hermes": _template(
        '\n<tool_call>\n{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}\n</tool_call>',
        end="{% elif m.role == 'tool' %}<tool_response>{{ m.name }}: {{ m.content }}</tool_response>" + _END,
    ),
    "qwen3_coder": _template(
        "\n<tool_call>\n<function={{ f.name }}>\n{% for key, value in f.arguments|items %}<parameter={{ key }}>\n"
        "{{ value if value is string else value | tojson }}\n</parameter>\n{% endfor %}</function>\n</tool_call>"
    ),
    "llama3_json": "<|start_header_id|>"
    + _template('{"name": "{{ f.name }}", "parameters": {{ f.arguments | tojson }}}'),
    "llama3_pythonic": "[func_name1(params_name1=params_value1), …]"
    + _template(
        "{{ f.name }}({% for key in f.arguments %}{{ key }}={{ f.arguments[key] | tojson }}"
        "{% if not loop.last %}, {% endif %}{% endfor %}){% if not loop.last %}, {% endif %}",
        "[",
        "]",
    ),
    "mistral": _template("[TOOL_CALLS]{{ f.name }}[ARGS]{{ f.arguments | tojson }}"),
    "mistral_array": _template(
        "{% if call.id | length != 9 %}{{ raise_exception('ids have 9 letters') }}{% endif %}"
        '{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}, "id": "{{ call.id }}"}'
        "{% if not loop.last %}, {% endif %}",
        "[TOOL_CALLS] [",
        "]",
        end="{% elif m.role == 'tool' %}[TOOL_RESULTS]{{ m.tool_call_id }}" + _END,
    ),
    "gemma4": '{% macro text(value) %}{% if value is string %}<|"|>{{ value }}<|"|>{% elif value is mapping %}'
    "{{ '{' }}"
    "{% for key in value %}{{ key }}:{{ text(value[key]) }}{% if not loop.last %},{% endif %}{% endfor %}}"
    "{% elif value is sequence %}[{% for each in value %}{{ text(each) }}{% if not loop.last %},{% endif %}"
    "{% endfor %}]{% else %}{{ value | tojson }}{% endif %}{% endmacro %}"
    + _template("<|tool_call>call:{{ f.name }}{{ text(f.arguments) }}<tool_call|>"),
    "glm": "<tool_call>{function-name}\n<arg_key>"
    + _template(
        "\n<tool_call>{{ f.name }}\n{% for key, value in f.arguments.items() %}<arg_key>{{ key }}</arg_key>\n"
        "<arg_value>"
        "{{ value if value is string else value | tojson }}</arg_value>\n{% endfor %}</tool_call>"
    ),
    "glm_inline": _template(
        "<tool_call>{{ f.name }}{% for key, value in f.arguments.items() %}<arg_key>{{ key }}</arg_key><arg_value>"
        "{{ value if value is string else value | tojson }}</arg_value>{% endfor %}</tool_call>"
    ),
    "minicpm": _template(
        "{{ f.name }}({% for key, value in f.arguments|items %}{{ key }}={{ value | tojson }}"
        "{% if not loop.last %},{% endif %}{% endfor %})\n",
        "<|tool_call_start|>\n```python\n",
        "```\n<|tool_call_end|>\n",
    ),
    "minicpm5": _template(
        '<function name="{{ f.name }}">{% for key, value in f.arguments|items %}<param name="{{ key }}">'
        "{% if value is string and ('<' in value or '\\n' in value) %}<![CDATA[{{ value }}]]>"
        "{% else %}{{ value if value is string else value | tojson }}{% endif %}</param>{% endfor %}</function>"
    ),
}
# Reads arguments as text, as templates of DeepSeek's kind do; of no dialect that is known.
JOINING = _template("{{ '<call>' + f['name'] + '\n' + f['arguments'] + '</call>' }}")
PLAIN = "{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>{{ m.content }}{% endfor %}"
