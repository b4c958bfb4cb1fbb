"""Reports: pure functions from scan documents to text, and the gate that a CI run ends with.

gate       findings at or above a severity that are new, and expectations that are not met
expect     expectations as data: KEY=VALUE against a scan
view       what all formats show, in one order
formats    name -> renderer, and several reports from one run
text, markdown, html            templates in ``reports/``
sarif, junit, github            formats that machines read
"""
