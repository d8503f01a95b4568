"""stub"""
ADVICE = ("table",)
def print_advice(*a): return 0
